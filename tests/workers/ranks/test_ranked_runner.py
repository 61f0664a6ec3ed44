"""A runner of many ranks keeps the contract of one, until a rank is gone or silent: then it says which."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.waiting import wait_for
from tests.tiny_model import write_tiny
from tests.workers.engine.engine_desk import Record, spec_of
from tests.workers.engine.tiny_torch import TINY_TORCH
from tests.workers.ranks.crews import LIMIT_S, SILENT_S, Decoding, Led, led
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.runner import Runner, RunnerEnded, SampleParams, ScheduledSequence, StepBatch
from workers.engine.torch_loading import load_torch_runner
from workers.ranks.grid import Grid
from workers.roles.proof import is_gone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"), layers=5, hidden=32)


@pytest.fixture(scope="module", params=[Grid(2, 1), Grid(1, 3)], ids=["TP2", "PP3"])
def led_grid(request: pytest.FixtureRequest, folder: Path) -> Iterator[Led]:
    with led(request.param, folder) as found:
        yield found


def answer(runner: Runner) -> Record:
    """Of an engine that has too few blocks for all at once, so that some are preempted."""
    record = Record()
    settings = EngineSettings(
        num_blocks=runner.num_blocks,
        context_tokens=120,
        block_size=runner.block_size,
        vocab_size=512,
        step_tokens=32,
        max_sequences=6,
    )
    engine = Engine(runner, settings, record)
    for number in range(8):
        sample = SampleParams(temperature=0.8 * (number % 2), top_k=20, seed=number)
        prompt = [(number * 31 + place * 7) % 500 + 3 for place in range(20 + number)]
        engine.add(spec_of(str(number), prompt, max_tokens=24, sample=sample))
    while engine.step_once():
        pass
    assert engine.load().free_blocks == runner.num_blocks
    return record


def test_an_engine_over_ranks_says_what_one_over_one_process_says(folder: Path, led_grid: Led) -> None:
    alone, ranked = answer(load_torch_runner(folder, TINY_TORCH)), answer(led_grid.runner)
    assert len(alone.finishes) == 8
    assert (ranked.tokens, ranked.finishes) == (alone.tokens, alone.finishes)


def test_every_layer_of_every_rank_is_told_once_in_order_by_the_return(led_grid: Led) -> None:
    runner = led_grid.runner
    told: list[tuple[int, int, int]] = []
    row = ScheduledSequence(list(range(3, 11)), 0, [2], None, 1)
    assert runner.run(StepBatch([row]), lambda *layers: told.append(layers)) == []
    for rank, pool in enumerate(runner.pools):
        layers = [layer for who, first, num in told for layer in range(first, first + num) if who == rank]
        assert layers == list(range(pool.first_layer, pool.first_layer + pool.num_layers))
    assert {pool.num_blocks for pool in runner.pools} == {runner.num_blocks} == {24}
    assert all(pool.address % 4096 == 0 for pool in runner.pools)


@pytest.mark.parametrize("led_grid", [Grid(2, 1)], indirect=True, ids=["TP2"])
def test_a_rank_that_is_silent_in_mid_step_is_killed_and_ends_the_runner_with_its_name(led_grid: Led) -> None:
    """The last of this grid: it has no ranks afterwards."""
    (process,) = led_grid.crew.processes()
    decoding = Decoding(led_grid.runner)
    assert decoding.is_under_way.wait(LIMIT_S)
    os.kill(process.pid, signal.SIGSTOP)
    assert f"rank 1 gave no sign of life for {SILENT_S:g} s" in decoding.wait_ended()


@pytest.mark.parametrize("led_grid", [Grid(1, 3)], indirect=True, ids=["PP3"])
def test_a_rank_that_dies_in_mid_step_ends_the_others_and_the_runner_with_its_name(
    led_grid: Led,
) -> None:
    """Also where the leader loses another first. The last of this grid: it has no ranks afterwards."""
    runner, (second, third) = led_grid.runner, led_grid.crew.processes()
    decoding = Decoding(runner)
    assert decoding.is_under_way.wait(LIMIT_S)
    os.kill(third.pid, signal.SIGKILL)
    assert "rank 2 has ended with code -9" in decoding.wait_ended()
    with pytest.raises(RunnerEnded, match="rank 2 has ended with code -9"):
        runner.run(StepBatch([ScheduledSequence([7], 0, [3], SampleParams(), 1)]), None)
    asyncio.run(wait_for(lambda: is_gone(second) and is_gone(third), LIMIT_S))
