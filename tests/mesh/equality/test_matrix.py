"""Every row in every cell gives the answer of a full recompute, and the cell was really what it says."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.equality.cells import CELLS, Cell, Load, Warmth, Where
from tests.mesh.equality.recompute import Expected, Recompute
from tests.mesh.equality.rows import BLOCK, CONTEXT, CROWD, EOS_PROMPT, ROWS, Endpoint, some_tokens
from tests.mesh.equality.stage import Counts, Stage, Told, count, num_primed
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.tiny_model import EOS_TOKEN_IDS, write_eos, write_tiny

NUM_BLOCKS = 456
MOST_NEAR_TIES = 1
ENVIRON = {
    "KVMESH_WORKER_BLOCK_SIZE": str(BLOCK),
    "KVMESH_WORKER_NUM_BLOCKS": str(NUM_BLOCKS),
    "KVMESH_WORKER_REMOTE_MIN_TOKENS": str(BLOCK),
    "KVMESH_WORKER_PREFILL_CHOICE": "threshold",
    "KVMESH_WORKER_STEP_TOKENS": "128",  # the longest prompts are computed in two chunks
}
SPECULATING = {
    "KVMESH_WORKER_SPECULATIVE": "ngram",
    "KVMESH_WORKER_NGRAM_MIN_TOKENS": "1",  # short answers say few things twice
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that ends its answer to `EOS_PROMPT` with the first token."""
    folder = write_tiny(tmp_path_factory.mktemp("equality") / "tiny", context=CONTEXT)
    write_eos(folder, (*EOS_TOKEN_IDS, Recompute(folder, CONTEXT).first_token(EOS_PROMPT)))
    return folder


@pytest.fixture(scope="module")
def table(model: Path) -> list[Expected]:
    recompute = Recompute(model, CONTEXT)
    return [recompute.expect(row) for row in ROWS]


@pytest.fixture(scope="module")
def crowd(model: Path) -> Expected:
    return Recompute(model, CONTEXT).expect(CROWD)


@pytest.fixture(scope="module")
def local(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """One decode worker, alone, that guesses."""
    folder, environ = tmp_path_factory.mktemp("local"), ENVIRON | SPECULATING
    with run_mesh(folder, str(model), "--prefill", "0", environ=environ) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def remote(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """A prefill and a decode worker, neither of which guesses; a block of new tokens goes from one to the
    other."""
    environ = ENVIRON | {"KVMESH_WORKER_SPECULATIVE": "off"}
    with run_mesh(tmp_path_factory.mktemp("remote"), str(model), environ=environ) as mesh:
        mesh.wait_until("all workers are ready", lambda: "ready after" in mesh.output(), 60)
        yield mesh


def test_few_rows_come_to_a_near_tie(table: list[Expected], crowd: Expected) -> None:
    near_ties = [expected.row.name for expected in (*table, crowd) if expected.is_near_tie]
    assert len(near_ties) <= MOST_NEAR_TIES, near_ties


def test_the_pool_holds_the_whole_table_at_once_and_not_the_crowd(
    table: list[Expected], crowd: Expected
) -> None:
    assert sum(map(most_blocks, table)) <= NUM_BLOCKS < most_blocks(crowd)


def most_blocks(expected: Expected) -> int:
    """Blocks that its sequences fill at their longest; those of one prompt share its full ones."""
    most = 0
    for prompt in expected.prompts:
        num_shared = (len(prompt) - 1) // BLOCK
        longest = min(CONTEXT, len(prompt) + (expected.asks.max_tokens or CONTEXT))
        most += num_shared + expected.asks.n * (-(-longest // BLOCK) - num_shared)
    return most


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_kind_of_request_has_the_answer_of_a_full_recompute(
    cell: Cell, table: list[Expected], crowd: Expected, request: pytest.FixtureRequest
) -> None:
    mesh: RunningMesh = request.getfixturevalue(cell.where.value)
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


BEYOND: list[tuple[Endpoint, dict[str, object]]] = [
    ("completions", {"prompt": some_tokens(CONTEXT, 30)}),
    ("completions", {"prompt": [some_tokens(5, 30), some_tokens(CONTEXT, 30)], "max_tokens": 1}),
    ("completions", {"prompt": some_tokens(CONTEXT, 30), "stream": True}),
]


@pytest.mark.parametrize(("endpoint", "body"), BEYOND, ids=["alone", "second of two", "streamed"])
@pytest.mark.parametrize("where", Where, ids=lambda where: where.value)
def test_a_prompt_of_one_token_too_many_is_refused_with_both_numbers(
    where: Where, endpoint: Endpoint, body: dict[str, object], request: pytest.FixtureRequest
) -> None:
    mesh: RunningMesh = request.getfixturevalue(where.value)
    reply = mesh.http.post(f"/v1/{endpoint}", json={"model": mesh.models()[0], **body})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["message"].count(str(CONTEXT)) == 2, "the prompt's tokens, and what the context holds"


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_grammar_that_only_a_worker_finds_fault_with_is_a_400_that_names_the_field(
    local: RunningMesh, *, is_streamed: bool
) -> None:
    """No token of the model begins it: a frontend has no tokens."""
    (model,) = local.models()
    body = {"model": model, "prompt": "x", "guided_grammar": "start: <|nobody|>", "stream": is_streamed}
    reply = local.http.post("/v1/completions", json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", "guided_grammar")
    assert "nobody" in error["message"]


def test_guesses_were_tried_in_one_mesh_and_not_in_the_other(local: RunningMesh, remote: RunningMesh) -> None:
    num_drafted, num_accepted = (
        local.metric("decode-0", f"kvmesh_{what}_tokens_total") for what in ("drafted", "accepted")
    )
    assert 0 < num_accepted < num_drafted
    assert remote.metric("decode-0", "kvmesh_drafted_tokens_total") == 0


@pytest.mark.parametrize("where", Where, ids=lambda where: where.value)
def test_the_mesh_is_as_it_was_before_the_matrix(where: Where, request: pytest.FixtureRequest) -> None:
    mesh: RunningMesh = request.getfixturevalue(where.value)
    mesh.wait_at_rest()
