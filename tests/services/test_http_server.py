"""The HTTP server, where it is not what uvicorn does by itself."""

import asyncio
import http.client
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from services.http_server import serve_http

IDLE_S = 7.0


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


def _ask(connection: http.client.HTTPConnection) -> bytes:
    """On the connection that is open, and on no other."""
    connection.auto_open = 0 if connection.sock is not None else 1
    connection.request("GET", "/")
    return connection.getresponse().read()
