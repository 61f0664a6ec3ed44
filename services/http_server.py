"""An HTTP server inside a process that has its own signals, logs and lifetime: uvicorn without those."""

import asyncio
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from proto.errors import InvalidSetting
from services.tasks import open_tasks

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients and proxies keep theirs (httpx 5 s, balancers 60),
so that none of them sends a request on a connection that is being closed."""


_ARRIVED_S = "arrived_s"


def arrived_s(scope: Mapping[str, Any]) -> float:
    """When the kernel had of this request what was read of it first: the rest may have come later.

    Units: seconds on the monotonic clock, as exact as the kernel's clock ticks, a few milliseconds.
    """
    when_s: float = scope["state"][_ARRIVED_S]
    return when_s


class HttpServer:
    """A server that runs. `port` is the real one, whatever was asked for."""

    def __init__(self, host: str, port: int, server: uvicorn.Server) -> None:
        self.host = host
        self.port = port
        self._server = server

    @property
    def url(self) -> str:
        """For a client on this host."""
        return f"http://{'127.0.0.1' if self.host in ('', '0.0.0.0') else self.host}:{self.port}"

    def stop_listening(self) -> None:
        """New connections are no longer taken; those that are open stay."""
        for listening in self._server.servers:
            listening.close()


@asynccontextmanager
async def serve_http(
    app: Any, host: str, port: int, *, setting: str, drain_limit_s: float = 1.0, shares_port: bool = False
) -> AsyncIterator[HttpServer]:
    """Serves the ASGI `app` for the time of the body, then lets open requests end within the limit.

    `port` 0 takes a free one. A connection made once this has yielded is answered. `setting` is the port's
    name in errors. `shares_port`: other processes of this user that say so too may listen on it, and the
    kernel deals new connections out among them.

    Raises:
        InvalidSetting: the port cannot be had.
    """
    with _listen(host, port, setting, shares_port) as listener:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(drain_limit_s)),
        )
        server = _Server(config)
        async with open_tasks() as tasks:
            tasks.create_task(server.serve([listener]), name=f"http {setting}")
            try:
                yield HttpServer(host, listener.getsockname()[1], server)
            finally:
                server.end()


@contextmanager
def _listen(host: str, port: int, setting: str, shares_port: bool) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server((host, port), backlog=2048, reuse_port=shares_port)
        # Inherited by what is accepted: asyncio's own loop leaves Nagle's algorithm on, which holds the small
        # writes of a stream back by 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise InvalidSetting(setting=setting, reason=f"{host}:{port}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidSetting(setting=setting, reason=f"shared: {error}") from error
    with listener:
        yield listener


class _Protocol(HttpToolsProtocol):
    """Notes when each request arrived. Sends no chunks to who speaks HTTP/1.0, which has none: what has no
    length ends with its connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][_ARRIVED_S] = time.monotonic() - _unread_s(self.transport)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        cycle = self.cycle
        if self.scope["http_version"] != "1.0":
            return
        send_counted, cycle.chunked_encoding = cycle.send, False

        async def send(message: ASGISendEvent) -> None:
            # uvicorn counts what is left of a length that was named; here each piece is all there is to count
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send_counted(message)

        cycle.send = send  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        assert isinstance(self.server_state, _State)
        self.server_state.changed.set()


_TCP_INFO_BYTES = 104
_LAST_DATA_RECEIVED_AT = 52


def _unread_s(transport: asyncio.Transport) -> float:
    """How long the kernel has held what it received last: a client waits while this process waits for a core.

    Units: seconds, in ticks of the kernel's clock: too much or too little by one, right on average. 0 where
    the kernel does not tell.

    Source: tcp(7), TCP_INFO; `tcpi_last_data_recv` of `struct tcp_info` in linux/tcp.h.
    """
    if sys.platform != "linux":
        return 0.0
    connection = transport.get_extra_info("socket")
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (held_ms,) = struct.unpack_from("=I", info, _LAST_DATA_RECEIVED_AT)
    return float(held_ms) / 1e3


class _State(ServerState):
    """`changed` when there is a connection less."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()


class _Server(uvicorn.Server):
    """Leaves signals to `services.process`, and ends when it is told to and its connections have, not at the
    next tenth of a second after each."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.servers = []
        self.server_state = self._state = _State()
        self._told = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Whatever ends it, no connection stays open that nobody serves.

        Cancel: clients of open requests see the connection end.
        """
        try:
            await super().serve(sockets)
        finally:
            for listening in self.servers:
                listening.close()
            for connection in list(self._state.connections):
                connection.transport.abort()

    def end(self) -> None:
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        """Writes the headers of each second, the date among them."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Open requests end within `timeout_graceful_shutdown`, or are cancelled."""
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self._state.connections:
                    self._state.changed.clear()
                    await self._state.changed.wait()
        except TimeoutError:
            for task in self._state.tasks:
                task.cancel()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=self.config.timeout_graceful_shutdown)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
