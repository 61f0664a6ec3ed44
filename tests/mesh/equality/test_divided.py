"""Workers that are divided over ranks, in each pairing of them: answers are those of a full recompute."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.equality.cells import Cell, Delivery, Load, Warmth, Where
from tests.mesh.equality.checks import check_cell
from tests.mesh.equality.recompute import Expected
from tests.mesh.equality.stage import ENVIRON
from tests.mesh.pairings import PAIRINGS, PP2, TP2, TP2_PP2, TP8
from tests.mesh.running_mesh import RunningMesh, run_mesh
from workers.ranks.grid import Grid

pytestmark = pytest.mark.timeout(600)

READY_S = 120.0
ALONE = {"TP2 alone": TP2, "PP2 alone": PP2, "TP2xPP2 alone": TP2_PP2, "each head twice, alone": TP8}
"""Decode workers that prefill all themselves."""
QUICK = "TP2 to PP2"
"""The classic pair stands for all; the rest in long runs."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in (*PAIRINGS, *ALONE)
    ],
)
def division(request: pytest.FixtureRequest) -> str:
    """How the workers of `mesh` are divided."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def mesh(division: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    if division in ALONE:
        strategy, flags = "direct", ("--prefill", "0", *grid_flags("decode", ALONE[division]))
    else:
        prefill, decode, strategy = PAIRINGS[division]
        flags = (*grid_flags("prefill", prefill), *grid_flags("decode", decode))
    environ = ENVIRON | {"KVMESH_TRANSFER_STRATEGY": strategy, "KVMESH_TRANSFER_STAGING_MIB": "4"}
    with run_mesh(tmp_path_factory.mktemp("divided"), str(model), *flags, environ=environ) as mesh:
        mesh.wait_until("all workers are ready", lambda: "ready after" in mesh.output(), READY_S)
        yield mesh


def grid_flags(role: str, grid: Grid) -> tuple[str, ...]:
    return f"--{role}-tp", str(grid.tp), f"--{role}-pp", str(grid.pp)


@pytest.mark.parametrize(
    ("load", "warmth", "delivery"),
    [
        (Load.TOGETHER, Warmth.COLD, Delivery.STREAMED),
        (Load.TOGETHER, Warmth.WARM, Delivery.WHOLE),
        pytest.param(Load.TOGETHER, Warmth.HALF, Delivery.STREAMED, marks=pytest.mark.slow),
        pytest.param(Load.PREEMPTED, Warmth.COLD, Delivery.WHOLE, marks=pytest.mark.slow),
    ],
    ids=lambda axis: axis.value,
)
def test_every_kind_of_request_has_the_answer_of_a_full_recompute(
    division: str,
    mesh: RunningMesh,
    load: Load,
    warmth: Warmth,
    delivery: Delivery,
    table: list[Expected],
    crowd: Expected,
) -> None:
    where = Where.LOCAL if division in ALONE else Where.REMOTE
    check_cell(mesh, Cell(where, load, warmth, delivery), table, crowd)


def test_kv_went_as_was_said_and_the_mesh_is_as_it_was_before(division: str, mesh: RunningMesh) -> None:
    mesh.wait_at_rest()
    strategy = "direct" if division in ALONE else PAIRINGS[division].strategy
    for worker in mesh.worker_names().values():
        assert mesh.metric(worker, "kvmesh_transfer_strategy", strategy=strategy) == 1
        assert mesh.metric(worker, "kvmesh_staging_blocks_lent") == 0
