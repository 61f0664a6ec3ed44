"""Answers over NATS: the same as over HTTP, streamed and whole, for our client and for any other."""

import asyncio
import json
from typing import Any

import pytest
import uvloop
from kvmesh_client import RequestRefused
from nats.aio.msg import Msg

from proto.requests import GenerateRequest
from tests.frontend.conftest import MODEL, events, text_of
from tests.frontend.scripted_mesh import Script
from tests.frontend.side_door.conftest import ASK, Dial

ANSWER = [*range(100, 160), 2]


def test_a_chat_over_nats_is_that_over_http_streamed_and_whole(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            http = (await dialled.served.chat()).json()
            whole = await dialled.client.chat(**ASK)
            options: dict[str, Any] = {"stream_options": {"include_usage": True}}
            over_http = events((await dialled.served.chat(stream=True, **options)).text)
            chunks = [chunk async for chunk in dialled.client.stream_chat(**ASK, **options)]
        assert whole["choices"] == http["choices"]
        assert whole["usage"] == http["usage"]
        unlike = ("id", "created")
        assert over_http[-1] == "[DONE]"
        assert [{k: v for k, v in chunk.items() if k not in unlike} for chunk in chunks] == [
            {k: v for k, v in chunk.items() if k not in unlike} for chunk in over_http[:-1]
        ]

    uvloop.run(body())


def test_completions_and_models_are_those_of_http(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            asked: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 20}
            http = (await dialled.served.http.post("/v1/completions", json=asked)).json()
            whole = await dialled.client.complete(**asked)
            chunks = [chunk async for chunk in dialled.client.stream_complete(**asked)]
            listed = await dialled.client.models()
            shown = await dialled.client.model(MODEL)
            models = (await dialled.served.http.get("/v1/models")).json()["data"]
        text = whole["choices"][0]["text"]
        assert text == http["choices"][0]["text"] == "".join(c["choices"][0]["text"] for c in chunks)
        assert listed == models
        assert shown == models[0]

    uvloop.run(body())


def test_prompts_become_tokens_and_tokens_text_as_over_http(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            asked = {"model": MODEL, "prompt": "Once upon a time"}
            http = (await dialled.served.http.post("/tokenize", json=asked)).json()
            tokens = await dialled.client.tokenize(**asked)
            text = await dialled.client.detokenize(model=MODEL, tokens=tokens)
            with pytest.raises(RequestRefused) as refused:
                await dialled.client.detokenize(model=MODEL, tokens=[512])
        assert tokens == http["tokens"]
        assert "Once upon a time" in text
        assert refused.value.param == "tokens"

    uvloop.run(body())


def test_any_client_gets_a_whole_answer_as_one_reply_and_its_request_id_back(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            headers = {"X-Request-Id": "mine-1", "x-kvmesh-facts": "1"}
            reply = await dialled.connection.request(
                dialled.subject("chat"), json.dumps(ASK).encode(), timeout=30, headers=headers
            )
        answer = json.loads(reply.data)
        assert answer["object"] == "chat.completion"
        assert answer["kvmesh"]["choices"][0]["worker"] == "w0"
        assert reply.headers is not None
        assert reply.headers["x-request-id"] == "mine-1"
        assert reply.headers["Kvmesh-End"] == "done"

    uvloop.run(body())


def test_any_client_reads_a_stream_by_its_lines_until_the_end_header(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER, per_frame=7)}) as dialled:
            expected = (await dialled.client.chat(**ASK))["choices"][0]["message"]["content"]
            inbox = dialled.connection.new_inbox()
            subscription = await dialled.connection.subscribe(inbox)
            asked = json.dumps({**ASK, "stream": True}).encode()
            await dialled.connection.publish(dialled.subject("chat"), asked, reply=inbox)
            messages: list[Msg] = []
            while not messages or "Kvmesh-End" not in (messages[-1].headers or {}):
                messages.append(await subscription.next_msg(timeout=15))
        chunks = [json.loads(line) for m in messages for line in m.data.splitlines() if line.strip()]
        text = text_of(chunks)
        assert text == expected
        assert messages[-1].data == b""
        told = [m for m in messages if m.data.strip() or m is messages[-1]]
        numbers = [(m.headers or {})["Kvmesh-Seq"] for m in told]
        assert numbers == [str(number) for number in range(len(told))]
        assert len(told) < len(chunks)  # what waits for a client leaves in one message

    uvloop.run(body())


def test_many_at_once_get_each_its_own_answer(dial: Dial) -> None:
    async def body() -> None:
        def answer(request: GenerateRequest) -> list[int]:
            seed = request.sampling.seed
            return [*(100 + (seed * 7 + step) % 150 for step in range(30)), 2]

        async with dial({"w0": Script(answer, per_frame=3)}) as dialled:
            alone = [(await dialled.served.chat(seed=seed)).json() for seed in range(24)]

            async def stream(seed: int) -> str:
                return text_of([chunk async for chunk in dialled.client.stream_chat(**ASK, seed=seed)])

            together = await asyncio.gather(*(stream(seed) for seed in range(24)))
        assert together == [one["choices"][0]["message"]["content"] for one in alone]

    uvloop.run(body())
