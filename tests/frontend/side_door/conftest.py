"""A client on NATS before a frontend on a scripted mesh."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import nats
import pytest
from kvmesh_client import KvmeshClient, KvmeshError
from nats.aio.client import Client

from services.servers import Server
from tests.frontend.conftest import MODEL, Serve, Served
from tests.frontend.scripted_mesh import Script

ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class Dialled:
    """A served mesh, and a client of it with its connection."""

    served: Served
    nats: Server
    connection: Client
    client: KvmeshClient

    @property
    def ns(self) -> str:
        return self.served.mesh.ns

    def subject(self, endpoint: str) -> str:
        return f"kvmesh.{self.ns}.openai.{endpoint}"


Dial = Callable[..., AbstractAsyncContextManager[Dialled]]


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Client]:
    async def stay_quiet(error: Exception) -> None:
        """The client of the tests logs nothing."""

    connection = await nats.connect(url, error_cb=stay_quiet, reconnect_time_wait=0.1, **options)
    try:
        yield connection
    finally:
        await connection.close()


async def wait_ready(http: httpx.AsyncClient, admin_url: str) -> None:
    """Returns once a frontend serves, over NATS too."""
    async with asyncio.timeout(20):
        while (await http.get(f"{admin_url}/readyz")).status_code != 200:
            pass


async def refused(client: KvmeshClient, **fields: Any) -> KvmeshError:
    """What a chat with these fields fails with."""
    try:
        answer = await client.chat(**{**ASK, **fields})
    except KvmeshError as error:
        return error
    raise AssertionError(f"answered with {answer}")


@pytest.fixture
def dial(serve: Serve, nats_server: Server) -> Dial:
    """`async with dial({"w0": Script(...)}) as dialled:` the side door is open."""

    @asynccontextmanager
    async def dial(
        scripts: dict[str, Script], nats: Server = nats_server, **settings: Any
    ) -> AsyncIterator[Dialled]:
        async with serve(scripts, nats, **settings) as served, connected(nats.url) as connection:
            await wait_ready(served.http, served.admin_url)
            client = KvmeshClient(connection, served.mesh.ns, timeout_s=30)
            yield Dialled(served, nats, connection, client)

    return dial
