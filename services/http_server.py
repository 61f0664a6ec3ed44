"""An HTTP server inside a process that has its own signals, logs and lifetime: uvicorn without those."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import uvicorn

from proto.errors import InvalidSetting
from services.tasks import open_tasks

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients and proxies keep theirs (httpx 5 s, balancers 60),
so that none of them sends a request on a connection that is being closed."""


class HttpAddress(msgspec.Struct, frozen=True):
    """Where a server listens; `port` is the real one, whatever was asked for."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """For a client on this host."""
        return f"http://{'127.0.0.1' if self.host in ('', '0.0.0.0') else self.host}:{self.port}"


@asynccontextmanager
async def serve_http(
    app: Any, host: str, port: int, *, setting: str, drain_limit_s: float = 1.0
) -> AsyncIterator[HttpAddress]:
    """Serves the ASGI `app` for the time of the body, then lets open requests end within the limit.

    `port` 0 takes a free one. A connection made once this has yielded is answered. `setting` is the port's
    name in errors.

    Raises:
        InvalidSetting: the port cannot be had.
    """
    with _listen(host, port, setting) as listener:
        config = uvicorn.Config(
            app,
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
                yield HttpAddress(host, listener.getsockname()[1])
            finally:
                server.should_exit = True


@contextmanager
def _listen(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server((host, port), backlog=2048)
        # Inherited by what is accepted: asyncio's own loop leaves Nagle's algorithm on, which holds the small
        # writes of a stream back by 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise InvalidSetting(setting=setting, reason=f"{host}:{port}: {error.strerror or error}") from error
    with listener:
        yield listener


class _Server(uvicorn.Server):
    """Leaves signals to `services.process`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
