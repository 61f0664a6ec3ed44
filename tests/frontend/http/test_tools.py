"""Tools and reasoning at the door: what OpenAI's own client makes of what a worker writes."""

import json
from collections.abc import Callable
from typing import Any

import uvloop
from openai.types import chat as openai_chat

from frontend.openai.answers import ChatChunk, ChatCompletion
from proto.requests import GenerateRequest
from proto.tokens import unpack_tokens
from services.grammars.vocabulary import check_grammar
from tests.frontend.conftest import MODEL, Serve, Served, check_whole, events
from tests.frontend.scripted_mesh import Script

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined %}<think>\n{{ '' if enable_thinking else '\n</think>\n\n' }}{% endif %}"
    '{# writes "arguments" #}'
)
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look_up"}}
TOOLS: list[Any] = [ADD, LOOK]
CALLS = (
    'Let me.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>'
)
EVERY_PER_FRAME = [1, 3, 100]


def says(text: str) -> Callable[[Served], Callable[[GenerateRequest], list[int]]]:
    return lambda served: lambda _: [*served.tokenizer.encode(text, add_special_tokens=False), 2]


def script(served: Served, text: str, per_frame: int = 2) -> None:
    """What the worker answers from now on."""
    worker = served.mesh.workers["w0"]
    worker.script = Script(says(text)(served), step_s=0, per_frame=per_frame)


def told(reply: openai_chat.ChatCompletion) -> dict[str, Any]:
    """The message without the ids of its calls, which differ each time."""
    [choice] = reply.choices
    message = choice.message.model_dump(exclude_none=True)
    for call in message.get("tool_calls", []):
        assert len(call.pop("id")) == 9
        call.pop("index", None)
    return {**message, "content": choice.message.content, "finish": choice.finish_reason}


async def ask(served: Served, **fields: Any) -> openai_chat.ChatCompletion:
    reply: openai_chat.ChatCompletion = await served.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], **fields
    )
    return reply


async def ask_streamed(served: Served, **fields: Any) -> openai_chat.ChatCompletion:
    async with served.openai.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], **fields
    ) as stream:
        return await stream.get_final_completion()


def test_calls_come_whole_as_they_come_streamed_however_frames_are_cut(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            for per_frame in EVERY_PER_FRAME:
                script(served, CALLS, per_frame)
                whole = told(await ask(served, tools=[ADD, LOOK]))
                assert whole == {
                    "role": "assistant",
                    "content": "Let me.\n",
                    "finish": "tool_calls",
                    "tool_calls": [
                        {"type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}},
                        {"type": "function", "function": {"name": "look_up", "arguments": "{}"}},
                    ],
                }
                streamed = told(await ask_streamed(served, tools=[ADD, LOOK]))
                for call in streamed["tool_calls"]:
                    call["function"].pop("parsed_arguments", None)
                assert streamed == whole

    uvloop.run(body())


def test_tools_count_in_the_tokens_of_a_chat(serve: Serve) -> None:
    async def body() -> None:
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            await ask(served, tools=TOOLS)
            found = await served.http.post("/tokenize", json=asked)
            assert found.json()["tokens"] == unpack_tokens(served.mesh.routed[-1].prompt)
            bare = await served.http.post("/tokenize", json={**asked, "tools": []})
            assert bare.json()["count"] < found.json()["count"]
            for wrong in ([ADD, ADD], [{"type": "web_search"}]):
                refused = await served.http.post("/tokenize", json={**asked, "tools": wrong})
                assert refused.status_code == 400

    uvloop.run(body())


def test_each_of_several_choices_has_its_own_calls(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            script(served, CALLS)
            reply = await ask(served, tools=[ADD, LOOK], n=2)
            assert [len(choice.message.tool_calls or []) for choice in reply.choices] == [2, 2]
            ids = {call.id for choice in reply.choices for call in choice.message.tool_calls or []}
            assert len(ids) == 4

    uvloop.run(body())


def test_content_is_null_beside_calls_alone_and_each_delta_has_its_index(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            script(served, CALLS.removeprefix("Let me.\n"))
            whole = await ask(served, tools=[ADD, LOOK])
            assert whole.choices[0].message.content is None
            chunks = events((await served.chat(tools=[ADD, LOOK], stream=True)).text)[:-1]
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
            assert [part["function"]["name"] for part in parts if "id" in part] == ["add", "look_up"]
            assert sorted({part["index"] for part in parts}) == [0, 1]
            assert all(part["type"] == "function" for part in parts if "id" in part)
            assert deltas[0] == {"role": "assistant", "content": None}
            assert not any(delta.get("content") for delta in deltas)
            finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
            assert [finish for finish in finishes if finish] == ["tool_calls"]

    uvloop.run(body())


def test_a_call_that_is_cut_off_says_length_and_a_malformed_one_is_content(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            script(served, CALLS)
            cut = told(await ask(served, tools=[ADD], max_tokens=40))
            assert cut["finish"] == "length"
            script(served, "<tool_call>\n{'name': 'add'}\n</tool_call>")
            malformed = told(await ask(served, tools=[ADD]))
            assert malformed["content"] == "<tool_call>\n{'name': 'add'}\n</tool_call>"
            assert malformed["finish"] == "stop"

    uvloop.run(body())


def test_tools_reach_the_template_unless_none_shall_be_called_and_then_nothing_is_a_call(
    serve: Serve,
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            script(served, CALLS)
            for choice, shows in (("auto", True), (None, True), ("none", False)):
                reply = told(await ask(served, tools=[ADD, LOOK], tool_choice=choice))
                assert ("tool_calls" in reply) == shows
                assert (reply["content"] == CALLS) == (not shows)
                prompt = prompt_of(served)
                assert ("add look_up" in prompt) == shows

    uvloop.run(body())


def prompt_of(served: Served) -> str:
    tokens = unpack_tokens(served.mesh.workers["w0"].requests[-1].prompt)
    return b"".join(map(served.tokenizer.spelling, tokens)).decode()


def test_reasoning_is_told_apart_and_counted(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            for text, options in (
                ("<think>\nHm, so.\n</think>\n\nYes.", {}),
                ("Hm, so.\n</think>\n\nYes.", {"enable_thinking": True}),
            ):
                script(served, text)
                for asking in (ask, ask_streamed):
                    reply = await asking(served, extra_body={"chat_template_kwargs": options})
                    message = told(reply)
                    assert (message["reasoning_content"], message["content"]) == ("Hm, so.\n", "Yes.")
                reply = await ask(served, extra_body={"chat_template_kwargs": options})
                assert reply.usage is not None
                assert reply.usage.completion_tokens_details is not None
                least, most = (
                    len(served.tokenizer.encode(part, add_special_tokens=False))
                    for part in ("Hm, so.", text.removesuffix("\n\nYes."))
                )
                num_told = reply.usage.completion_tokens_details.reasoning_tokens
                assert num_told is not None
                assert least <= num_told <= most
            script(served, "No thought")
            plain = await ask(served, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
            assert "reasoning_content" not in told(plain)
            assert plain.usage is not None
            assert plain.usage.completion_tokens_details is not None
            assert plain.usage.completion_tokens_details.reasoning_tokens == 0

    uvloop.run(body())


def test_every_token_is_told_of_once_and_in_order_beside_calls_and_reasoning(serve: Serve) -> None:
    text = "<think>\nHm.</think>\n\n" + CALLS

    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            script(served, text)
            wanted = [served.tokenizer.token_bytes(each) for each in served.tokenizer.encode(text, False)]
            whole = await served.chat(tools=[ADD, LOOK], logprobs=True)
            streamed = events((await served.chat(tools=[ADD, LOOK], logprobs=True, stream=True)).text)[:-1]
            choices = [chunk["choices"][0] for chunk in streamed]
            by_delta = [
                each for choice in choices if choice["logprobs"] for each in choice["logprobs"]["content"]
            ]
            for told_of in (whole.json()["choices"][0]["logprobs"]["content"], by_delta):
                assert [bytes(each["bytes"]) for each in told_of] == wanted
            begin = next(at for at, choice in enumerate(choices) if "tool_calls" in choice["delta"])
            before = [choice["logprobs"]["content"] for choice in choices[:begin] if choice["logprobs"]]
            told_before = b"".join(bytes(each["bytes"]) for content in before for each in content)
            assert text[: text.index("<tool_call>")].encode().startswith(told_before)
            assert "content" not in {key for choice in choices[begin:] for key in choice["delta"]}

    uvloop.run(body())


def test_answers_with_calls_and_reasoning_have_the_shapes_that_are_documented(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            script(served, "<think>\nHm.</think>\n\n" + CALLS)
            asked: dict[str, Any] = {"tools": TOOLS, "logprobs": True}
            check_whole(ChatCompletion, (await served.chat(**asked)).text)
            usage = {"include_usage": True}
            for event in events((await served.chat(**asked, stream=True, stream_options=usage)).text)[:-1]:
                check_whole(ChatChunk, json.dumps(event))

    uvloop.run(body())


def test_who_must_call_is_led_by_a_grammar_of_the_models_own_syntax(serve: Serve) -> None:
    named = {"type": "function", "function": {"name": "add"}}

    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            worker = served.mesh.workers["w0"]
            for choice, functions in (("required", ["add", "look_up"]), (named, ["add"])):
                script(served, CALLS.removeprefix("Let me.\n"))
                await ask(served, tools=[ADD, LOOK], tool_choice=choice)
                constraint = worker.requests[-1].constraint
                assert constraint is not None
                assert (constraint.kind, constraint.field) == ("grammar", "tools")
                check_grammar(constraint)
                for name in ("add", "look_up"):
                    assert (f'\\"name\\": \\"{name}\\"' in constraint.text) == (name in functions)
            await ask(served, tools=[ADD, LOOK])
            assert worker.requests[-1].constraint is None

    uvloop.run(body())


def test_a_stop_string_ends_an_answer_within_a_call_too(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            script(served, CALLS)
            for asking in (ask, ask_streamed):
                reply = told(await asking(served, tools=[ADD, LOOK], stop=[', "b"']))
                [call] = reply["tool_calls"]
                assert call["function"]["arguments"] == '{"a": 1'
                assert reply["finish"] == "stop"

    uvloop.run(body())


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [function(name="a b")]}, "tools[0].function.name"),
    ({"tools": [function(name="f\n")]}, "tools[0].function.name"),
    ({"tools": [ADD, ADD]}, "tools[1].function.name"),
    ({"tools": [LOOK] * 129}, "tools"),
    ({"tools": [function(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
    ({"tools": [function(more=1)]}, "tools[0].function"),
    ({"tools": [function(parameters={"title": "x" * 2**16})]}, "tools"),
    ({"tools": [ADD], "tool_choice": LOOK}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [ADD], "parallel_tool_calls": 3}, "parallel_tool_calls"),
    ({"tools": [ADD], "ignore_eos": True}, "ignore_eos"),
    ({"tools": [ADD], "guided_regex": "x"}, "guided_regex"),
    ({"tools": [function(parameters={"properties": {"a": {"type": "no"}}}, strict=True)]}, "tools"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
]


def test_what_is_wrong_with_tools_is_a_400_that_names_it(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            for fields, field in WRONG:
                reply = await served.chat(**fields)
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)

    uvloop.run(body())


def test_a_model_whose_template_takes_no_tools_refuses_them_by_name(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}) as served:
            reply = await served.chat(tools=[ADD])
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
            assert (await served.chat(tools=[ADD], tool_choice="none")).status_code == 200

    uvloop.run(body())


def test_a_conversation_goes_on_from_a_call_to_its_result_and_an_answer(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}, template=TEMPLATE) as served:
            script(served, CALLS)
            first = (await ask(served, tools=[ADD, LOOK])).choices[0].message
            assert first.tool_calls is not None
            script(served, "It is 3.")
            messages: list[Any] = [
                {"role": "user", "content": "1 + 2?"},
                first.model_dump(exclude_none=True),
                *({"role": "tool", "tool_call_id": call.id, "content": "3"} for call in first.tool_calls),
            ]
            reply = await served.openai.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
            assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("It is 3.", "stop")
            prompt = prompt_of(served)
            assert json.dumps({"name": "add", "arguments": {"a": 1, "b": 2}}) in prompt
            assert prompt.count("<|im_start|>tool\n3<|im_end|>") == 2

    uvloop.run(body())
