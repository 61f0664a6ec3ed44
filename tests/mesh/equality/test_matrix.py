"""Every row in every cell gives the answer of a full recompute, and the cell was really what it says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.equality.cells import CELLS, Cell, Where
from tests.mesh.equality.checks import check_cell
from tests.mesh.equality.recompute import Expected
from tests.mesh.equality.rows import BLOCK, CONTEXT, Endpoint, some_tokens
from tests.mesh.equality.stage import ENVIRON, NUM_BLOCKS, SPECULATING
from tests.mesh.running_mesh import RunningMesh, run_mesh

MOST_NEAR_TIES = 1


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
    check_cell(request.getfixturevalue(cell.where.value), cell, table, crowd)


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
