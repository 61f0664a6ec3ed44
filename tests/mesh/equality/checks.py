"""One cell, looked at: every answer is that of a full recompute, and the cell was really what it says."""

import asyncio

from tests.mesh.equality.cells import Cell, Load, Warmth, Where
from tests.mesh.equality.recompute import Expected
from tests.mesh.equality.rows import BLOCK
from tests.mesh.equality.stage import Counts, Stage, Told, count, num_primed
from tests.mesh.running_mesh import RunningMesh


def check_cell(mesh: RunningMesh, cell: Cell, table: list[Expected], crowd: Expected) -> None:
    """
    Raises:
        AssertionError: one is not.
    """
    has_prefill = cell.where is Where.REMOTE
    before = count(mesh, has_prefill=has_prefill)
    told = asyncio.run(Stage(mesh).play(cell, table, crowd))
    for each in told:
        each.expected.check(each.heard)
        check_cached(cell, each)
    check_prefills(cell, told, mesh)
    check_counts(cell, count(mesh, has_prefill=has_prefill) - before)


def check_cached(cell: Cell, told: Told) -> None:
    """Exactly what is warm is a hit, except where others were so many that it was evicted, and where the
    logits of the prompt are wanted: all of it is computed. Of several choices the first one counts."""
    is_scored = told.expected.asks.prompt_logprobs is not None
    primed = [0 if is_scored else num_primed(prompt, cell.warmth) for prompt in told.expected.prompts]
    if cell.load is Load.PREEMPTED:
        assert told.heard.num_cached <= sum(primed), told.expected.row.name
    else:
        assert told.heard.num_cached == sum(primed), told.expected.row.name
        if told.expected.asks.n == 1:
            assert [facts.cached_tokens for facts in told.heard.facts] == primed


def check_counts(cell: Cell, counts: Counts) -> None:
    assert (counts.preemptions > 0) == (cell.load is Load.PREEMPTED)
    if cell.where is Where.LOCAL:
        assert counts.prefilled_remotely == 0
    elif cell.warmth is not Warmth.WARM:
        assert counts.prefilled_remotely > 0
        assert counts.jobs_served >= counts.prefilled_remotely
        assert counts.bytes_pushed > 0
        assert cell.warmth is not Warmth.HALF or counts.bytes_pulled > 0


def check_prefills(cell: Cell, table: list[Told], mesh: RunningMesh) -> None:
    """Only what has a block to compute is prefilled elsewhere, and of those that are alone at least half.

    Nothing is whose prompt's logits are wanted. Not all else: after a job that failed, as by a machine that
    stood still, its taker is not asked for a while.
    """
    scored = [told for told in table if told.expected.asks.prompt_logprobs is not None]
    assert all(each.prefill == "local" for told in scored for each in told.heard.facts)
    facts = [each for told in table if told not in scored for each in told.heard.facts]
    longs = [each for each in facts if each.prompt_tokens - 1 - each.cached_tokens >= BLOCK]
    remote = [each for each in facts if each.prefill == "remote"]
    assert all(each.attempts == 1 for each in facts)
    assert all(each in longs for each in remote)
    if cell.where is Where.LOCAL:
        assert not remote
    elif cell.load is Load.ALONE:
        assert 2 * len(remote) >= len(longs), mesh.log("decode-0")[-4000:]
