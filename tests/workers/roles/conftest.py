"""One agent, and one loop for it, for all lenders."""

import asyncio
from collections.abc import Iterator

import pytest

from proto.names import new_id
from services.servers import Server
from tests.workers.roles.lending import Lending, open_peers
from workers.transfer.peers import Peers
from workers.transfer.transfer_thread import TransferThread


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def holders(runner: asyncio.Runner, etcd_server: Server) -> Iterator[tuple[Peers, TransferThread]]:
    opened = open_peers(etcd_server, f"test-{new_id()}")
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
def lending(holders: tuple[Peers, TransferThread]) -> Lending:
    return Lending(*holders)
