"""The pairs of grids and how those of many ranks end: two that stand for all, and the rest in long runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proto.names import new_id
from services.servers import Server
from tests.mesh.pairings import PAIRINGS
from tests.mesh.ranks.grid_pair import Fate, GridPair, open_pair
from tests.mesh.ranks.one_process import OneProcess
from tests.tiny_model import write_tiny
from tests.workers.harness import Fleet

QUICK: dict[str, Fate] = {
    "one to TP2 by way of the host": "has a rank stopped",
    "TP2xPP2 to one": "loses its leader",
}
SLOW: dict[str, Fate] = {
    "TP2 to PP2": "loses a rank",
    "one to TP2": "loses a rank",
    "TP2 to PP2 by way of the host": "has a rank stopped",
    "PP2 to one": "is told to end",
    "TP2 to one": "loses a rank",
    "each head twice to one": "has a rank stopped",
    "one to each head twice": "is told to end",
}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 8 heads and 4 KV heads."""
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def alone(model: Path) -> OneProcess:
    return OneProcess(model)


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((name, fate), id=name) for name, fate in QUICK.items()),
        *(pytest.param((name, fate), id=name, marks=pytest.mark.slow) for name, fate in SLOW.items()),
    ],
)
def pair(
    request: pytest.FixtureRequest,
    nats_server: Server,
    etcd_server: Server,
    model: Path,
    alone: OneProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GridPair]:
    name, fate = request.param
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path_factory.mktemp("pair"))
    with open_pair(fleet, model, PAIRINGS[name]):
        yield GridPair(fleet, PAIRINGS[name], fate, alone)
