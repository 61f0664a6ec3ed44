"""One agent, and one loop for it, for all lenders."""

import asyncio
from collections.abc import Iterator

import pytest

from proto.names import new_id
from services.servers import Server
from tests.workers.roles.lending import Lending, open_peers
from workers.transfer.own_memory import OwnMemory
from workers.transfer.peers import Peers
from workers.transfer.staging import StagingSize

NUM_STAGING_BLOCKS = 10


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def holders(runner: asyncio.Runner, etcd_server: Server) -> Iterator[tuple[Peers, OwnMemory]]:
    opened = open_peers(etcd_server, f"test-{new_id()}")
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def staged_holders(runner: asyncio.Runner, etcd_server: Server) -> Iterator[tuple[Peers, OwnMemory]]:
    """The owner has staging for fewer blocks than it may lend."""
    opened = open_peers(etcd_server, f"test-{new_id()}", StagingSize(NUM_STAGING_BLOCKS, 1))
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
def lending(holders: tuple[Peers, OwnMemory]) -> Lending:
    return Lending(*holders)


@pytest.fixture
def staged_lending(staged_holders: tuple[Peers, OwnMemory]) -> Lending:
    return Lending(*staged_holders)
