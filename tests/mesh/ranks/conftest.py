"""The pairs of grids: three that stand for all, and the rest in long runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.servers import Server
from tests.mesh.ranks.grid_pair import GridPair, Pairing, open_pair
from tests.mesh.ranks.one_process import OneProcess
from tests.tiny_model import write_tiny
from workers.ranks.grid import Grid

ONE, TP2, PP2, TP2_PP2, TP8 = Grid(), Grid(tp=2), Grid(pp=2), Grid(tp=2, pp=2), Grid(tp=8)
QUICK = {
    "TP2 to PP2": Pairing(TP2, PP2, "has a rank stopped"),
    "one to TP2 by way of the host": Pairing(ONE, TP2, "loses a rank", "host"),
    "TP2xPP2 to one": Pairing(TP2_PP2, ONE, "loses its leader"),
}
SLOW = {
    "one to TP2": Pairing(ONE, TP2, "loses a rank"),
    "TP2 to PP2 by way of the host": Pairing(TP2, PP2, "has a rank stopped", "host"),
    "PP2 to one": Pairing(PP2, ONE, "is told to end"),
    "TP2 to one": Pairing(TP2, ONE, "loses a rank"),
    "each head twice to one": Pairing(TP8, ONE, "has a rank stopped"),
    "one to each head twice": Pairing(ONE, TP8, "is told to end"),
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
        *(pytest.param(pairing, id=name) for name, pairing in QUICK.items()),
        *(pytest.param(pairing, id=name, marks=pytest.mark.slow) for name, pairing in SLOW.items()),
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
    folder = tmp_path_factory.mktemp("pair")
    with open_pair(request.param, (nats_server, etcd_server), model, folder, alone) as opened:
        yield opened
