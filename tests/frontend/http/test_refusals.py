"""Refusals: the right status, OpenAI's envelope, the field by its name; in a stream too."""

import asyncio
import json
from typing import Any

import pytest
import uvloop
from openai import BadRequestError, NotFoundError, RateLimitError
from openai.types.chat import ChatCompletionMessageParam

from proto.errors import GoElsewhere, InvalidRequest, NoWorker, Overloaded, to_fault
from proto.streams import End
from tests.frontend.conftest import CONTEXT_TOKENS, MODEL, Serve, events
from tests.frontend.scripted_mesh import Script

QUIET = {"w0": Script(lambda _: [50, 51, 2])}
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


def _schema_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
        "response_format.json_schema.name",
    ),
    ({"response_format": _schema_format({"type": "objekt"})}, "response_format"),
    ({"response_format": _schema_format([])}, "response_format.json_schema.schema"),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_regex": "a" * 70_000}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_grammar": "start: nobody"}, "guided_grammar"),
    ({"structured_outputs": {"regex": "["}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"no_such_field": 1}}, "structured_outputs"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"min_p": 1.5}, "min_p"),
    ({"logit_bias": {"50": 101}}, "logit_bias"),
    ({"logit_bias": {"50": "much"}}, "logit_bias"),
    ({"logit_bias": {"fifty": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"512": 1}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"no_such_field": 1}, "no_such_field"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"seed": 2**70}, "seed"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"stream": True, "stream_options": {"include": True}}, "stream_options"),
    ({"store": True}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"user": 5}, "user"),
    ({"metadata": {"key": "x" * 513}}, "metadata"),
    ({"metadata": {"key": 5}}, "metadata"),
    ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"documents": [{"text": "x"}]}, "documents"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"verbosity": 10**400}, "verbosity"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": ["x"]}, "chat_template_kwargs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "audio": {"id": "a"}}]}, "messages[0].audio"),
    ({"model": 5}, "model"),
]


WRONG_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 2}, "best_of"),
    ({"n": 2, "best_of": 3}, "best_of"),
    ({"prompt": ["x"] * 43, "n": 3}, "n"),
    ({"prompt": ["x"] * 65}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": [[5], 5]}, "prompt"),
    ({"prompt": [[5], "x", [True]]}, "prompt[2][0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1, "echo": True}, "max_tokens"),
    ({"echo": 1}, "echo"),
    ({"suffix": "y"}, "suffix"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"prompt_logprobs": 0, "stream": True, "echo": True}, "prompt_logprobs"),
    ({"messages": []}, "messages"),
]


def test_every_wrong_field_of_a_completion_is_a_400_that_names_it(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            for fields, name in WRONG_COMPLETIONS:
                asked = {"model": MODEL, "prompt": "x", **fields}
                reply = await served.http.post("/v1/completions", json=asked)
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, name), fields
            assert not served.mesh.routed

    uvloop.run(body())


def test_every_wrong_or_unserved_field_is_a_400_that_names_it(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            for fields, name in WRONG_FIELDS:
                reply = await served.chat(**fields)
                assert reply.status_code == 400, fields
                error = reply.json()["error"]
                assert error["param"] == name, error
                assert error["type"] == "invalid_request_error"
                assert set(error) == {"message", "type", "param", "code"}
            assert not served.mesh.routed
            assert (await served.chat(n=1, logprobs=False, tools=[], logit_bias=None)).status_code == 200

    uvloop.run(body())


@pytest.mark.parametrize(
    "body_text", ["", "{", "[]", "null", '{"model": "m", "messages": "\\ud800"}', "\xff"]
)
def test_what_is_no_json_object_is_a_400(serve: Serve, body_text: str) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            reply = await served.http.post("/v1/chat/completions", content=body_text.encode("latin-1"))
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"

    uvloop.run(body())


def test_bodies_over_the_limit_are_a_413_told_their_length_or_not(serve: Serve) -> None:
    async def in_pieces() -> Any:
        for _ in range(4):
            yield b" " * 1000

    async def body() -> None:
        async with serve(QUIET, body_limit_bytes=2048) as served:
            known = await served.http.post("/v1/chat/completions", content=b" " * 4000)
            unknown = await served.http.post("/v1/chat/completions", content=in_pieces())
        assert (known.status_code, unknown.status_code) == (413, 413)
        assert unknown.json()["error"]["code"] == "payload_too_large"

    uvloop.run(body())


def test_a_body_that_does_not_come_is_a_408_and_harms_nobody_else(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET, body_limit_s=0.5) as served:
            host, port = served.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert (await served.chat()).status_code == 200
            async with asyncio.timeout(20):
                reply = (await reader.read()).decode()  # until the connection is closed
            writer.close()
        head, _, text = reply.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 408 ")
        assert json.loads(text)["error"]["code"] == "request_timeout"

    uvloop.run(body())


def test_what_can_be_read_can_be_asked_for_by_its_head_and_other_methods_are_named(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            for path in ("/v1/models", f"/v1/models/{MODEL}"):
                head, get = await served.http.head(path), await served.http.get(path)
                assert (head.status_code, head.content) == (200, b"")
                assert head.headers["content-length"] == str(len(get.content))
            options = await served.http.options("/v1/chat/completions")
        assert options.status_code == 405
        assert options.headers["allow"] == "POST"
        assert options.json()["error"]["code"] == "method_not_allowed"

    uvloop.run(body())


def test_unknown_paths_methods_and_models_speak_the_same_envelope(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            path = await served.http.get("/v1/nothing")
            method = await served.http.get("/v1/chat/completions")
            with pytest.raises(NotFoundError) as unknown:
                await served.openai.chat.completions.create(model="nope", messages=USER)
            with pytest.raises(NotFoundError):
                await served.openai.models.retrieve("nope")
        assert (path.status_code, method.status_code) == (404, 405)
        assert path.json()["error"]["code"] == "not_found"
        assert unknown.value.code == "model_not_found"

    uvloop.run(body())


def test_an_overlong_prompt_is_a_400_with_both_numbers(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            fits = {"model": MODEL, "prompt": [5] * (CONTEXT_TOKENS - 1)}
            assert (await served.http.post("/v1/completions", json=fits)).status_code == 200
            with pytest.raises(BadRequestError) as refused:
                await served.openai.completions.create(model=MODEL, prompt=[5] * CONTEXT_TOKENS)
            wrong = {"model": MODEL, "prompt": [5, 9999]}
            assert (await served.http.post("/v1/completions", json=wrong)).status_code == 400
            chat = await served.chat(messages=[{"role": "user", "content": "word " * CONTEXT_TOKENS}])
        assert refused.value.code == "context_length_exceeded"
        assert refused.value.param == "prompt"
        assert str(CONTEXT_TOKENS) in refused.value.message
        told = chat.json()["error"]
        assert (chat.status_code, told["code"], told["param"]) == (400, refused.value.code, "messages")

    uvloop.run(body())


def test_overload_is_a_429_and_no_worker_a_503_and_both_say_when_to_come_back(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            served.mesh.refusal = Overloaded(reason="the queue is full", retry_after_s=7)
            with pytest.raises(RateLimitError) as full:
                await served.openai.completions.create(model=MODEL, prompt="Hello")
            served.mesh.refusal = NoWorker(model=MODEL)
            nobody = await served.chat(stream=True)
        assert full.value.response.headers["retry-after"] == "7"
        assert nobody.status_code == 503
        assert nobody.headers["retry-after"] == "1"
        assert nobody.json()["error"]["code"] == "no_worker"

    uvloop.run(body())


def test_a_model_with_a_card_and_no_worker_is_a_503_and_not_listed(serve: Serve) -> None:
    async def body() -> None:
        async with serve({}) as served:
            async with asyncio.timeout(5):
                while (reply := await served.chat()).status_code == 404:
                    pass
            listed = (await served.http.get("/v1/models")).json()["data"]
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "no_worker"
        assert listed == []

    uvloop.run(body())


def test_a_deadline_is_a_504(serve: Serve) -> None:
    async def body() -> None:
        script = Script(lambda _: [50, 51, 2], stop_at=0)
        async with serve({"w0": script}, request_limit_s=0.7) as served:
            reply = await served.chat()
        assert reply.status_code == 504
        assert reply.json()["error"]["type"] == "timeout_error"

    uvloop.run(body())


def test_more_than_the_limit_at_once_are_refused(serve: Serve) -> None:
    async def body() -> None:
        script = Script(lambda _: [50, 2], stop_at=0)
        async with serve({"w0": script}, live_limit=1) as served:
            first = asyncio.ensure_future(served.chat())
            await served.mesh.wait_until(lambda: len(served.mesh.routed) == 1)
            assert (await served.chat()).status_code == 429
            first.cancel()
            script.stop_at = None
            async with asyncio.timeout(10):
                while (await served.chat()).status_code != 200:
                    pass

    uvloop.run(body())


def test_an_error_after_the_first_token_is_an_event_and_then_done(serve: Serve) -> None:
    async def body() -> None:
        wrong = End(None, fault=to_fault(InvalidRequest(field="seed", reason="wrong")))
        async with serve({"w0": Script(lambda _: [50, 51], end=wrong)}) as served:
            reply = await served.chat(stream=True)
            whole = await served.chat()
        found = events(reply.text)
        assert reply.status_code == 200
        assert found[-1] == "[DONE]"
        assert found[-2]["error"]["param"] == "seed"
        assert not any(event["choices"][0]["finish_reason"] for event in found[:-2])
        assert whole.status_code == 400
        json.loads(whole.text)

    uvloop.run(body())


def test_a_worker_that_says_go_elsewhere_costs_the_client_nothing(serve: Serve) -> None:
    async def body() -> None:
        busy = End(None, fault=to_fault(GoElsewhere(worker="w0", reason="draining")))
        scripts = {"w0": Script(lambda _: [], end=busy), "w1": Script(lambda _: [50, 2])}
        async with serve(scripts) as served:
            reply = await served.chat(kvmesh=True)
        assert reply.status_code == 200
        facts = reply.json()["kvmesh"]["choices"][0]
        assert (facts["worker"], facts["attempts"], facts["cached_tokens"]) == ("w1", 2, 3)

    uvloop.run(body())
