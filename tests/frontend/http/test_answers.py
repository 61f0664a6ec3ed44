"""Answers: streamed and whole alike, right in text, usage and finish reason, whole on any client."""

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import uvloop
from openai.types.chat import ChatCompletionMessageParam

from frontend.openai.answers import ChatChunk
from proto.requests import Sampling, Stopping
from proto.streams import End
from proto.tokens import unpack_tokens
from tests.frontend.conftest import CONTEXT_TOKENS, MODEL, Serve, check_whole, events, says, text_of
from tests.frontend.scripted_mesh import Script

TEXT = "The capital of France is Paris. Übermäßig schöne Wörter: naïve 日本 👩‍👩‍👧 end."
PATIENT_S = 100.0
"""For a hundred requests at once, beside others who keep the machine busy."""
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


def test_a_streamed_chat_equals_a_whole_one_and_both_are_the_workers_text(
    serve: Serve, tokenizer_json: bytes
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(TEXT, tokenizer_json))}) as served:
            whole = await served.openai.chat.completions.create(model=MODEL, messages=ASK)
            stream = await served.openai.chat.completions.create(
                model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        assert whole.choices[0].message.content == TEXT
        assert whole.choices[0].finish_reason == "stop"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == TEXT
        assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["stop"]
        assert chunks[-1].choices == []
        assert chunks[-1].usage == whole.usage
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens == 3
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    uvloop.run(body())


def test_each_event_says_how_far_the_answer_is_where_that_was_asked_for(
    serve: Serve, tokenizer_json: bytes
) -> None:
    async def body() -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        async with serve({"w0": Script(says(TEXT, tokenizer_json))}) as served:
            whole = (await served.chat()).json()["usage"]
            told = events((await served.chat(stream=True, stream_options=options)).text)[:-1]
        for event in told:
            check_whole(ChatChunk, json.dumps(event))
        counts = [event["usage"]["completion_tokens"] for event in told]
        assert counts == sorted(counts)
        assert all(event["usage"]["prompt_tokens"] == whole["prompt_tokens"] for event in told)
        assert told[-1]["usage"] == told[-2]["usage"] == whole

    uvloop.run(body())


def test_no_event_breaks_a_character_and_done_comes_once(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(TEXT, tokenizer_json))}) as served:
            reply = await served.chat(stream=True)
        found = events(reply.text)
        assert found[-1] == "[DONE]"
        assert found.count("[DONE]") == 1
        assert text_of(found[:-1]) == TEXT
        assert all("usage" not in event for event in found[:-1])

    uvloop.run(body())


@pytest.mark.parametrize("per_frame", [1, 7])
def test_a_stop_string_ends_the_text_before_it_however_frames_are_cut(
    serve: Serve, tokenizer_json: bytes, per_frame: int
) -> None:
    async def body() -> None:
        script = Script(says(TEXT, tokenizer_json), per_frame=per_frame)
        async with serve({"w0": script}) as served:
            whole = await served.chat(stop=["Wörter", "is Paris"])
            streamed = events((await served.chat(stop=["Wörter", "is Paris"], stream=True)).text)
            worker = served.mesh.workers["w0"]
            await worker.wait_until(lambda: len({request for request, _ in worker.cancelled}) == 2)
        choice = whole.json()["choices"][0]
        assert choice["message"]["content"] == "The capital of France "
        assert choice["finish_reason"] == "stop"
        text = text_of(streamed[:-1])
        assert text == "The capital of France "
        tokens = served.tokenizer.encode("The capital of France is Paris", add_special_tokens=False)
        assert whole.json()["usage"]["completion_tokens"] == len(tokens)

    uvloop.run(body())


def test_max_tokens_ends_with_length_and_is_clamped_to_the_context(
    serve: Serve, tokenizer_json: bytes
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(TEXT * 20, tokenizer_json), step_s=0.0)}) as served:
            short = (await served.chat(max_completion_tokens=3)).json()
            full = (await served.chat(max_tokens=100_000)).json()
        assert short["choices"][0]["finish_reason"] == "length"
        assert short["usage"]["completion_tokens"] == 3
        assert full["usage"]["total_tokens"] == 256

    uvloop.run(body())


def test_a_stop_token_is_not_shown_and_an_empty_answer_is_whole(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [50, 51, 52])}) as served:
            reply = (await served.chat(stop_token_ids=[52])).json()
            shown = served.tokenizer.token_bytes(50) + served.tokenizer.token_bytes(51)
            served.mesh.workers["w0"].script.answer = lambda _: [2]
            empty = (await served.chat()).json()
            streamed = events((await served.chat(stream=True)).text)
        assert reply["choices"][0]["message"]["content"] == shown.decode("utf-8", "replace")
        assert empty["choices"][0]["message"]["content"] == ""
        assert empty["choices"][0]["finish_reason"] == "stop"
        assert [event["choices"][0]["finish_reason"] for event in streamed[:-1]] == [None, "stop"]

    uvloop.run(body())


def test_completions_take_text_tokens_and_several_prompts(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda request: [60 + len(request.prompt) // 4, 2])}) as served:
            client = served.openai.completions
            one = await client.create(model=MODEL, prompt="Hello")
            ids = await client.create(model=MODEL, prompt=[5, 6, 7])
            many = await client.create(model=MODEL, prompt=[[5], [5, 6]])
            stream = await client.create(model=MODEL, prompt=["Hello", "Hello, world"], stream=True)
            texts = {0: "", 1: ""}
            finishes = []
            async for chunk in stream:
                choice = chunk.choices[0]
                texts[choice.index] += choice.text
                finishes += [choice.finish_reason] if choice.finish_reason else []
        tokenizer = served.tokenizer

        def text(num_prompt: int) -> str:
            return tokenizer.token_bytes(60 + num_prompt).decode("utf-8", "replace")

        assert one.choices[0].text == text(len(tokenizer.encode("Hello", add_special_tokens=True)))
        assert ids.choices[0].text == text(3)
        assert [choice.text for choice in many.choices] == [text(1), text(2)]
        assert many.usage is not None
        assert many.usage.prompt_tokens == 3
        assert texts[0] == one.choices[0].text
        assert finishes == ["stop", "stop"]

    uvloop.run(body())


def test_the_worker_gets_what_the_client_asked_for_and_always_a_seed(
    serve: Serve, tokenizer_json: bytes
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}) as served:
            await served.chat(
                temperature=0.5,
                top_p=0.9,
                top_k=7,
                seed=11,
                stop_token_ids=[9],
                ignore_eos=True,
                min_p=0.1,
                presence_penalty=0.5,
                frequency_penalty=-0.5,
                repetition_penalty=1.5,
                logit_bias={"7": -100, "8": 1.5},
                min_tokens=1,
                logprobs=True,
                top_logprobs=4,
                cache_salt="tenant",
                priority=3,
                worker_id="w0",
                user="someone",
                n=1,
            )
            await served.chat()
            await served.chat()
        first, second, third = served.mesh.routed
        assert (first.sampling.seed, first.salt, first.priority) == (11, "tenant", 3)
        assert first.wanted_worker == "w0"
        assert first.stopping == Stopping(first.stopping.max_tokens, [9], ignore_eos=True, min_tokens=1)
        assert msgspec.structs.replace(first.sampling, seed=0) == Sampling(
            0.5, 0.9, 7, 0, 0.1, 0.5, -0.5, 1.5, {7: -100.0, 8: 1.5}, logprobs=4
        )
        assert msgspec.structs.replace(second.sampling, seed=0) == Sampling()
        assert second.sampling.seed != third.sampling.seed

    uvloop.run(body())


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, "Paris is<|im_end|>\n"),
        ({"continue_final_message": True}, "<|im_start|>assistant\nParis is"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "assistant\nParis is"),
        ({"chat_template_kwargs": {"enable_thinking": False}, "documents": []}, "<|im_start|>assistant\n"),
    ],
)
def test_a_prompt_ends_where_the_client_wants_it_to(serve: Serve, fields: dict[str, Any], end: str) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}) as served:
            messages = [*ASK, {"role": "assistant", "content": "Paris is"}]
            assert (await served.chat(messages=messages, **fields)).status_code == 200
            tokens = unpack_tokens(served.mesh.routed[0].prompt)
            prompt = b"".join(map(served.tokenizer.spelling, tokens)).decode()
        assert prompt.endswith(end)

    uvloop.run(body())


def test_what_asks_for_nothing_is_taken_and_the_tier_is_told_if_one_was_named(serve: Serve) -> None:
    async def body() -> None:
        harmless = {
            "user": "u",
            "safety_identifier": "s",
            "metadata": {"k": "v"},
            "prompt_cache_key": "p",
            "prompt_cache_retention": "24h",
            "store": False,
            "verbosity": "medium",
            "modalities": ["text"],
            "stream_options": None,
            "tools": None,
        }
        async with serve({"w0": Script(lambda _: [50, 2])}) as served:
            plain = (await served.chat(**harmless)).json()
            named = (await served.chat(service_tier="auto")).json()
            streamed = events((await served.chat(service_tier="auto", stream=True)).text)
        assert "service_tier" not in plain
        assert named["service_tier"] == "default"
        assert {event["service_tier"] for event in streamed[:-1]} == {"default"}

    uvloop.run(body())


def test_facts_are_told_when_asked_for_and_the_request_id_comes_back(
    serve: Serve, tokenizer_json: bytes
) -> None:
    async def body() -> None:
        end = End("stop", cached_tokens=4, prefill="remote", prefill_worker="p0")
        async with serve({"w0": Script(lambda _: [50, 2], end=end)}) as served:
            whole = await served.chat(kvmesh=True)
            headers = {"x-kvmesh-facts": "1", "x-request-id": "mine-7"}
            message = {"model": MODEL, "messages": ASK, "stream": True}
            streamed = await served.http.post("/v1/chat/completions", json=message, headers=headers)
            plain = await served.chat()
        facts = whole.json()["kvmesh"]["choices"][0]
        assert (facts["worker"], facts["attempts"]) == ("w0", 1)
        assert (facts["prefill"], facts["prefill_worker"], facts["cached_tokens"]) == ("remote", "p0", 4)
        assert 0 < facts["ttft_s"] <= facts["total_s"]
        assert streamed.headers["x-request-id"] == "mine-7"
        assert [
            event["kvmesh"]["choices"][0]["worker"] for event in events(streamed.text) if "kvmesh" in event
        ]
        assert "kvmesh" not in plain.json()

    uvloop.run(body())


def test_a_request_waits_from_its_first_byte_whenever_its_body_comes(serve: Serve) -> None:
    """Who counts from the moment a request was sent, as load generators do, must find the same here."""

    async def body() -> None:
        asked = json.dumps({"model": MODEL, "messages": ASK}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Kvmesh-Facts: 1\r\n"
            f"Expect: 100-continue\r\nContent-Length: {len(asked)}\r\n\r\n"
        )
        async with serve({"w0": Script(lambda _: [50, 2])}) as served, asyncio.timeout(60):
            address = urlsplit(served.url)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            began_s = time.monotonic()
            writer.write(head.encode())
            assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
            arrived_s = time.monotonic()
            for _ in range(10):
                await served.chat()
            sent_s = time.monotonic()
            writer.write(asked)
            answer = json.loads((await reader.read()).split(b"\r\n\r\n", 1)[1])
            writer.close()
        (facts,) = answer["kvmesh"]["choices"]
        assert sent_s - arrived_s < facts["ttft_s"] < time.monotonic() - began_s

    uvloop.run(body())


def test_models_are_listed_and_shown_and_the_page_of_routes_is_whole(
    serve: Serve, tokenizer_json: bytes
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [2])}) as served:
            listed = [model.id async for model in await served.openai.models.list()]
            shown = await served.openai.models.retrieve(MODEL)
            limits = (await served.http.get(f"/v1/models/{MODEL}")).json()
            schema = (await served.http.get("/openapi.json")).json()
        assert listed == [MODEL]
        assert shown.id == MODEL
        assert (limits["context_tokens"], limits["vocab_size"]) == (CONTEXT_TOKENS, 512)
        assert set(schema["paths"]) >= {"/v1/chat/completions", "/v1/completions", "/v1/models"}
        assert "ChatBody" in schema["components"]["schemas"]

    uvloop.run(body())


async def _one(served_http: httpx.AsyncClient) -> str:
    body = {"model": MODEL, "prompt": "Hello"}
    reply = await served_http.post("/v1/completions", json=body, timeout=PATIENT_S)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def test_a_hundred_at_once_get_each_its_own_answer(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(TEXT, tokenizer_json))}) as served:
            texts = await asyncio.gather(*(_one(served.http) for _ in range(100)))
            worker = served.mesh.workers["w0"]
            await worker.wait_until(lambda: len(set(worker.acknowledged)) == 100, PATIENT_S)
        assert set(texts) == {TEXT}

    uvloop.run(body())
