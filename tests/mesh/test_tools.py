"""Tools on a whole mesh: a tiny model that is led calls them, and OpenAI's own client goes on from there."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessage

from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny

MARKS = ("[TOOL_CALLS]", "[ARGS]")
TEMPLATE = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    "{% if call.id | length != 9 %}{{ raise_exception('an id has nine characters') }}{% endif %}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "paint": {"colour": {"enum": ["red", "blue"]}, "layers": {"type": "integer", "minimum": 1, "maximum": 9}},
    "ask": {"who": {"enum": ["Ann", "Übü \"x\""]}},
}  # fmt: skip
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
        },
    }
    for name, properties in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "ask"}}
QUESTION: Any = {"role": "user", "content": "Whom shall I ask, and what shall I paint?"}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("tools")
    model = write_tiny(folder / "tiny", chat_template=TEMPLATE, more_special_tokens=MARKS)
    with run_mesh(folder / "state", str(model), "--prefill", "0") as mesh:
        yield mesh


@pytest.fixture(scope="module")
def client(mesh: RunningMesh) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{mesh.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, dict[str, Any]]]:
    assert message.content is None
    calls = []
    for call in message.tool_calls or []:
        assert call.type == "function"
        calls.append((call.function.name, json.loads(call.function.arguments)))
    return calls


def check(calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert calls
    for name, arguments in calls:
        assert arguments.keys() == SCHEMAS[name].keys()
        assert arguments.get("colour", "red") in SCHEMAS["paint"]["colour"]["enum"]
        assert arguments.get("who", "Ann") in SCHEMAS["ask"]["who"]["enum"]


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_model_that_must_call_does_so_streamed_as_whole(client: OpenAI, choice: Any, seed: int) -> None:
    asked: Any = {
        "model": "tiny",
        "messages": [QUESTION],
        "tools": TOOLS,
        "tool_choice": choice,
        "seed": seed,
    }

    whole = client.chat.completions.create(**asked, parallel_tool_calls=False).choices[0]
    with client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        streamed = stream.get_final_completion().choices[0]

    assert whole.finish_reason == streamed.finish_reason == "tool_calls"
    calls = calls_of(whole.message)
    assert calls_of(streamed.message) == calls
    check(calls)
    assert len(calls) == 1
    if choice is NAMED:
        assert calls[0][0] == "ask"


def test_several_calls_may_come_at_once_and_special_tokens_never_show(client: OpenAI) -> None:
    seen = set()
    for seed in range(4):
        reply = client.chat.completions.create(
            model="tiny", messages=[QUESTION], tools=TOOLS, tool_choice="required", seed=seed, max_tokens=300
        )
        assert not any(mark in reply.model_dump_json() for mark in MARKS)
        if reply.choices[0].finish_reason == "tool_calls":
            calls = calls_of(reply.choices[0].message)
            check(calls)
            seen.add(len(calls))
    assert seen


def test_every_token_of_a_call_is_told_of_and_those_that_mark_it_by_their_names(client: OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": [QUESTION], "tools": TOOLS, "tool_choice": NAMED, "seed": 1}
    reply = client.chat.completions.create(**asked, logprobs=True)
    [choice] = reply.choices
    assert choice.logprobs is not None
    assert reply.usage is not None

    told = choice.logprobs.content or []

    assert len(told) == reply.usage.completion_tokens - 1  # the token that ends the answer has no text
    [(_, arguments)] = calls_of(choice.message)
    written = b"".join(bytes(each.bytes or []) for each in told).decode()
    assert written == f"[TOOL_CALLS]ask[ARGS]{json.dumps(arguments, ensure_ascii=False)}"


def test_an_answer_follows_the_results_of_its_calls(mesh: RunningMesh, client: OpenAI) -> None:
    messages: list[Any] = [QUESTION]
    for seed in (3, 4):
        called = client.chat.completions.create(
            model="tiny", messages=messages, tools=TOOLS, tool_choice=NAMED, seed=seed
        ).choices[0]
        messages.append(called.message.model_dump(exclude_none=True))
        [call] = called.message.tool_calls or []
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "She says yes."})

    reply = client.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, tool_choice="none", max_tokens=8, seed=5
    ).choices[0]

    assert reply.message.tool_calls is None
    assert reply.message.content
    mesh.wait_at_rest()
