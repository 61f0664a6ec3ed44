"""Answers whose KV goes by way of the host's memory, on both sides, are those of a full recompute."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.equality.cells import Cell, Delivery, Load, Warmth, Where
from tests.mesh.equality.recompute import Recompute
from tests.mesh.equality.rows import CONTEXT, ROWS
from tests.mesh.equality.stage import Stage, count
from tests.mesh.equality.test_matrix import ENVIRON
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import write_tiny

HOST = {"KVMESH_TRANSFER_STRATEGY": "host", "KVMESH_TRANSFER_STAGING_MIB": "4"}
NAMES = ("longer chat", "five blocks", "long", "up to the limit", "seeded", "two prompts", "two choices")
COLD = Cell(Where.REMOTE, Load.TOGETHER, Warmth.COLD, Delivery.WHOLE)
HALF = Cell(Where.REMOTE, Load.ALONE, Warmth.HALF, Delivery.STREAMED)
READY_S = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("by way of the host") / "tiny", context=CONTEXT)


@pytest.fixture(scope="module")
def mesh(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with run_mesh(tmp_path_factory.mktemp("host"), str(model), environ=ENVIRON | HOST) as mesh:
        mesh.wait_until("all workers are ready", lambda: "ready after" in mesh.output(), READY_S)
        yield mesh


@pytest.mark.slow
def test_answers_are_those_of_a_full_recompute_pushed_and_pulled(model: Path, mesh: RunningMesh) -> None:
    recompute = Recompute(model, CONTEXT)
    table = [recompute.expect(row) for row in ROWS if row.name in NAMES]
    for cell in (COLD, HALF):
        before = count(mesh, has_prefill=True)
        for told in asyncio.run(Stage(mesh).play(cell, table, table[0])):
            told.expected.check(told.heard)
        counts = count(mesh, has_prefill=True) - before
        assert counts.prefilled_remotely > 0
        assert cell is COLD or counts.bytes_pulled > 0
    for worker in ("prefill-0", "decode-0"):
        assert mesh.metric(worker, "kvmesh_transfer_strategy", strategy="host") == 1
    mesh.wait_at_rest()
    mesh.wait_until(
        "all staging is free", lambda: mesh.metric("decode-0", "kvmesh_staging_blocks_lent") == 0, READY_S
    )
