"""The HTTP server, where it is not what uvicorn does by itself."""

import asyncio
import http.client
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from proto.errors import InvalidSetting
from services.http_server import arrived_s, serve_http

IDLE_S = 7.0
HELD_S = 0.3
TICK_S = 0.02
"""More than a tick of the kernel's clock, at 100 a second or more, and its rounding."""


async def _greet(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@pytest.mark.slow
def test_a_connection_outlives_what_clients_keep_theirs_idle() -> None:
    """One that is closed just when its client sends the next request costs that request."""

    async def body() -> None:
        app = Starlette(routes=[Route("/", _greet)])
        async with serve_http(app, "127.0.0.1", 0, setting="test.port") as address:
            connection = http.client.HTTPConnection(urlsplit(address.url).netloc, timeout=10)
            for pause_s in (0.0, IDLE_S):
                await asyncio.sleep(pause_s)
                assert await asyncio.to_thread(_ask, connection) == b"hello"
            connection.close()

    asyncio.run(body())


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell")
def test_a_request_has_arrived_when_the_kernel_has_it_however_late_it_is_read() -> None:
    async def tell(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(arrived_s(request.scope)))

    def send_unread(client: socket.socket) -> tuple[float, float]:
        began_s = time.monotonic()
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        sent_s = time.monotonic()
        time.sleep(HELD_S)  # the loop is held meanwhile
        return began_s, sent_s

    async def body() -> None:
        app = Starlette(routes=[Route("/", tell)])
        async with serve_http(app, "127.0.0.1", 0, setting="test.port") as server:
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
                began_s, sent_s = send_unread(client)
                answer = await asyncio.to_thread(_read_all, client)
        arrived = float(answer.rpartition(b"\r\n")[2])
        assert began_s - TICK_S < arrived < sent_s + TICK_S

    asyncio.run(body())


def _read_all(client: socket.socket) -> bytes:
    answer = b""
    while piece := client.recv(4096):
        answer += piece
    return answer


def test_servers_that_share_a_port_each_take_a_part_and_one_can_leave_it_to_the_other() -> None:
    def named(name: str) -> Starlette:
        async def answer(_: Request) -> PlainTextResponse:
            return PlainTextResponse(name)

        return Starlette(routes=[Route("/", answer)])

    async def body() -> None:
        first = serve_http(named("a"), "127.0.0.1", 0, setting="test.port", shares_port=True)
        async with first as a:
            second = serve_http(named("b"), "127.0.0.1", a.port, setting="test.port", shares_port=True)
            async with second:
                connections = [http.client.HTTPConnection("127.0.0.1", a.port, timeout=10) for _ in range(64)]
                asked = {each: await asyncio.to_thread(_ask, each) for each in connections}
                assert set(asked.values()) == {b"a", b"b"}
                a.stop_listening()
                kept = next(each for each, name in asked.items() if name == b"a")
                assert await asyncio.to_thread(_ask, kept) == b"a"
                for connection in connections:
                    connection.close()
                    assert await asyncio.to_thread(_ask, connection) == b"b"
                    connection.close()

    asyncio.run(body())


def test_a_port_is_shared_only_where_both_say_so() -> None:
    async def body() -> None:
        app = Starlette(routes=[Route("/", _greet)])
        for shares, then_shares in ((True, False), (False, True)):
            first = serve_http(app, "127.0.0.1", 0, setting="test.port", shares_port=shares)
            async with first as server:
                second = serve_http(
                    app, "127.0.0.1", server.port, setting="test.port", shares_port=then_shares
                )
                with pytest.raises(InvalidSetting, match="Address already in use"):
                    async with second:
                        pass

    asyncio.run(body())


def test_a_client_of_http_1_0_gets_no_chunks_but_the_end_of_its_connection() -> None:
    async def count(_: Request) -> StreamingResponse:
        return StreamingResponse(iter(["one ", "two ", "three"]))

    async def body() -> None:
        app = Starlette(routes=[Route("/whole", _greet), Route("/stream", count)])
        async with serve_http(app, "127.0.0.1", 0, setting="test.port") as server:
            for path, text in (("/whole", b"hello"), ("/stream", b"one two three")):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET %s HTTP/1.0\r\n\r\n" % path.encode())
                head, _, said = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
                writer.close()
                await writer.wait_closed()
                assert said == text
                assert b"transfer-encoding" not in head.lower()
                assert (b"content-length: 5" in head.lower()) == (path == "/whole")

    asyncio.run(body())


def test_a_body_that_fails_leaves_no_client_waiting_and_no_port_taken() -> None:
    """The server is cancelled then: open requests end with their connections, at once."""

    async def hang(_: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "begun"
            await asyncio.Event().wait()

        return StreamingResponse(parts())

    async def body() -> None:
        app = Starlette(routes=[Route("/", hang)])
        with pytest.raises(ZeroDivisionError):
            async with serve_http(app, "127.0.0.1", 0, setting="test.port", drain_limit_s=60) as server:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                assert b"begun" in await reader.readuntil(b"begun\r\n")
                raise ZeroDivisionError
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)

    for run in (asyncio.run, uvloop.run):
        run(body())


def _ask(connection: http.client.HTTPConnection) -> bytes:
    """On the connection that is open, and on no other."""
    connection.auto_open = 0 if connection.sock is not None else 1
    connection.request("GET", "/")
    return connection.getresponse().read()
