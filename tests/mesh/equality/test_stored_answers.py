"""The default model gives the stored tokens of `transformers`, wherever a prompt is prefilled."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from services.bus import BusSettings, open_bus
from tests.golden.make_smollm2_greedy import Golden, GoldenFile
from tests.golden.make_smollm2_lengths import LENGTHS, LENGTHS_PATH
from tests.mesh.equality.cells import Where
from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.mesh.token_client import TokenAnswer, TokenClient, ask_all

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "smollm2-135m"
BLOCK = 16
NEAR_TIE = 1e-3
MOST_NEAR_TIES = 1
ALL_S = 300.0


@pytest.fixture(scope="module")
def golden() -> list[Golden]:
    return msgspec.json.decode(LENGTHS_PATH.read_bytes(), type=GoldenFile).answers


@pytest.fixture(scope="module", params=Where, ids=lambda where: where.value)
def where(request: pytest.FixtureRequest) -> Where:
    found: Where = request.param
    return found


@pytest.fixture(scope="module")
def mesh(where: Where, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """One decode worker, with a prefill worker or without; a block of new tokens is prefilled elsewhere."""
    num_prefill = "1" if where is Where.REMOTE else "0"
    environ = {
        "KVMESH_WORKER_REMOTE_MIN_TOKENS": str(BLOCK),
        "KVMESH_WORKER_PREFILL_CHOICE": "threshold",
    }
    with run_mesh(
        tmp_path_factory.mktemp(where.value), MODEL, "--prefill", num_prefill, environ=environ
    ) as mesh:
        mesh.wait_until("all workers are ready", lambda: "ready after" in mesh.output(), 120)
        yield mesh


def firm(entry: Golden) -> list[int]:
    """The tokens before the first near-tie."""
    num_firm = next((place for place, gap in enumerate(entry.gaps) if gap < NEAR_TIE), len(entry.tokens))
    return entry.tokens[:num_firm]


def check(answers: list[TokenAnswer], golden: list[Golden]) -> None:
    for answer, entry in zip(answers, golden, strict=True):
        assert answer.end is not None
        assert (answer.end.fault, answer.end.finish) == (None, "length"), entry.name
        expected = firm(entry)
        assert answer.tokens[: len(expected)] == expected, entry.name
        assert len(answer.tokens) == len(entry.tokens)


def test_the_stored_prompts_are_of_every_length_and_few_come_to_a_near_tie(golden: list[Golden]) -> None:
    assert tuple(len(entry.prompt) for entry in golden) == LENGTHS
    near_ties = [entry.name for entry in golden if len(firm(entry)) < len(entry.tokens)]
    assert len(near_ties) <= MOST_NEAR_TIES, near_ties


def test_one_after_the_other_cold_and_warm(mesh: RunningMesh, where: Where, golden: list[Golden]) -> None:
    prompts = {entry.name: entry.prompt for entry in golden}
    file = mesh.file
    for is_warm in (False, True):
        answers = asyncio.run(ask_all(file.nats_url, file.namespace, MODEL, prompts, len(golden[0].tokens)))
        check(answers, golden)
        for answer, entry in zip(answers, golden, strict=True):
            assert answer.end is not None
            uncached = len(entry.prompt) - 1 - answer.end.cached_tokens
            assert answer.end.cached_tokens == ((len(entry.prompt) - 1) // BLOCK * BLOCK if is_warm else 0)
            is_remote = where is Where.REMOTE and uncached >= BLOCK
            assert answer.end.prefill == ("remote" if is_remote else "local"), entry.name


def test_all_at_once(mesh: RunningMesh, golden: list[Golden]) -> None:
    async def body() -> list[TokenAnswer]:
        async with open_bus(BusSettings(url=mesh.file.nats_url), "token client") as bus:
            client = TokenClient(bus, mesh.file.namespace)
            await client.open()
            asks = [
                client.ask(MODEL, entry.prompt, len(entry.tokens), f"at once, {entry.name}", limit_s=ALL_S)
                for entry in golden
            ]
            return await asyncio.gather(*asks)

    check(asyncio.run(body()), golden)
