"""What is refused over NATS, and how: HTTP's envelope, with the micro-service convention's headers."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from kvmesh_client import KvmeshClient, Overloaded, RequestRefused, Unavailable
from nats.aio.client import Client

from services import servers
from services.servers import Server
from tests.frontend.conftest import MODEL, Serve
from tests.frontend.scripted_mesh import Script
from tests.frontend.side_door.conftest import ASK, Dial, connected, refused

ANSWER = [*range(100, 130), 2]

BAD_FIELDS: list[dict[str, Any]] = [
    {"temperature": 9},
    {"no_such_field": 1},
    {"messages": []},
    {"model": "no/such"},
    {"messages": [{"role": "user", "content": "word " * 400}]},
]


def test_what_http_refuses_is_refused_alike_streamed_or_not(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            for fields in BAD_FIELDS:
                http = await dialled.served.chat(**fields)
                said = http.json()["error"]
                whole = await refused(dialled.client, **fields)
                streamed = await refused(dialled.client, **fields, stream=True)
                for error in (whole, streamed):
                    assert isinstance(error, RequestRefused)
                    assert str(error) == said["message"]
                    assert (error.status, error.code, error.param) == (
                        http.status_code,
                        said["code"],
                        said["param"],
                    )

    uvloop.run(body())


async def ask_raw(connection: Client, subject: str, payload: bytes) -> tuple[Any, dict[str, str]]:
    reply = await connection.request(subject, payload, timeout=15)
    return json.loads(reply.data), reply.headers or {}


def test_any_client_finds_the_error_in_message_and_headers(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            for payload in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"model": "x"}'):
                envelope, headers = await ask_raw(dialled.connection, dialled.subject("chat"), payload)
                assert envelope["error"]["type"] == "invalid_request_error"
                assert headers["Nats-Service-Error-Code"] == "400"
                assert headers["Nats-Service-Error"]
                assert headers["Kvmesh-End"] == "error"

    uvloop.run(body())


def test_a_wrong_field_of_a_question_for_models_is_named(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            for payload, field in ((b'{"model": 5}', "model"), (b'{"a": 5}', "a"), (b"[]", "body")):
                envelope, _ = await ask_raw(dialled.connection, dialled.subject("models"), payload)
                assert envelope["error"]["param"] == field

    uvloop.run(body())


def test_a_body_over_the_limit_is_refused_with_both_numbers(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}, body_limit_bytes=2000) as dialled:
            messages = [{"role": "user", "content": "x" * 3000}]
            error = await refused(dialled.client, messages=messages)
        assert error.status == 413
        assert "2000" in str(error)

    uvloop.run(body())


def test_a_request_that_no_message_holds_is_refused_before_it_is_sent(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            messages = [{"role": "user", "content": "x" * servers.MAX_PAYLOAD_BYTES}]
            error = await refused(dialled.client, messages=messages)
            still = await dialled.client.chat(**ASK, max_tokens=1)
        assert (error.status, error.code) == (413, "payload_too_large")
        assert still["usage"]["completion_tokens"] == 1

    uvloop.run(body())


def test_an_answer_that_no_message_holds_fails_typed_whole_and_comes_in_pieces_streamed(
    dial: Dial, make_nats: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        long = [*(100 + step % 150 for step in range(200)), 2]
        told: dict[str, Any] = {"logprobs": True, "top_logprobs": 20}
        async with dial({"w0": Script(lambda _: long, step_s=0, per_frame=64)}, make_nats()) as dialled:
            error = await refused(dialled.client, **told)
            chunks = [chunk async for chunk in dialled.client.stream_chat(**ASK, **told)]
        assert (error.status, error.code) == (413, "payload_too_large")
        assert sum(len(json.dumps(chunk)) for chunk in chunks) > servers.MAX_PAYLOAD_BYTES
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"

    monkeypatch.setattr(servers, "MAX_PAYLOAD_BYTES", 160 * 1024)
    uvloop.run(body())


def test_more_requests_than_may_be_open_are_told_when_to_come_back(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER, stop_at=3)}, live_limit=1) as dialled:
            stream = dialled.client.stream_chat(**ASK)
            await anext(stream)
            error = await refused(dialled.client)
            await stream.aclose()
        assert isinstance(error, Overloaded)
        assert error.retry_after_s == 1

    uvloop.run(body())


def test_without_a_mesh_or_with_the_door_shut_nobody_is_there_at_once(
    serve: Serve, nats_server: Server
) -> None:
    async def body() -> None:
        async with (
            serve({"w0": Script(lambda _: ANSWER)}, side_door=False) as served,
            connected(nats_server.url) as connection,
        ):
            client = KvmeshClient(connection, served.mesh.ns, timeout_s=60)
            async with asyncio.timeout(20):
                error = await refused(client)
        assert isinstance(error, Unavailable)
        assert error.code == "no_responder"

    uvloop.run(body())


def test_no_reply_is_sent_where_the_mesh_itself_listens(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            chat = dialled.subject("chat")
            await dialled.connection.publish(chat, json.dumps(ASK).encode(), reply=chat)
            await dialled.client.chat(**ASK, max_tokens=1)
        assert len(dialled.served.mesh.routed) == 1
        assert dialled.served.mesh.model == MODEL

    uvloop.run(body())
