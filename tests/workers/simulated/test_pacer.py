"""Steps on the event loop: each takes its time, the loop is free meanwhile, and an end is told."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from proto.errors import InternalFault
from tests.services.waiting import wait_for
from tests.workers.engine.engine_desk import Record, spec_of
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.runner import IsWanted, OnLayers, RowResult, StepBatch, always_wanted
from workers.engine.simulated_model import WITHOUT_TIME, SimulatedModel, SimulatedTime
from workers.engine.step import StepOutput
from workers.simulated.instant_runner import InstantRunner
from workers.simulated.pacer import Lateness, Pacer

NUM_BLOCKS = 64
STEP_S = 0.01
PROMPT = list(range(20))
TIMED = msgspec.structs.replace(WITHOUT_TIME, step_s=STEP_S)


class BrokenRunner(InstantRunner):
    """A runner with a bug."""

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        raise RuntimeError("broken")


def make_engine(model: SimulatedModel, record: Record, runner: type[InstantRunner] = InstantRunner) -> Engine:
    settings = EngineSettings(num_blocks=NUM_BLOCKS, context_tokens=1000, max_failed_steps=2)
    return Engine(runner(model, NUM_BLOCKS, 16), settings, record)


@asynccontextmanager
async def paced(model: SimulatedModel, *engines: Engine) -> AsyncIterator[Lateness]:
    """The engines take their steps for the time of the body."""
    lateness = Lateness()
    async with asyncio.TaskGroup() as tasks:
        pacing = [
            tasks.create_task(Pacer(engine, SimulatedTime(model, ""), lateness).run(), name="pacer")
            for engine in engines
        ]
        yield lateness
        for task in pacing:
            task.cancel()


async def serve(model: SimulatedModel, records: Sequence[Record], num_tokens: int) -> tuple[Lateness, float]:
    """One sequence for each of as many engines; and the seconds until all have ended."""
    engines = [make_engine(model, record) for record in records]
    for engine in engines:
        engine.add(spec_of("a", PROMPT, max_tokens=num_tokens))
    began_s = time.monotonic()
    async with paced(model, *engines) as lateness:
        await wait_for(lambda: all("a" in record.finishes for record in records))
    return lateness, time.monotonic() - began_s


def test_steps_take_their_time() -> None:
    lateness, took_s = asyncio.run(serve(TIMED, [Record()], 50))
    assert lateness.num_steps == 50
    assert 50 * STEP_S * 0.98 <= took_s <= 50 * STEP_S + lateness.late_s + 0.2


def test_the_rates_that_an_engine_reports_are_those_of_the_model() -> None:
    async def body() -> None:
        model = msgspec.structs.replace(TIMED, prefill_token_s=0.001, prefill_doubling_tokens=0)
        record = Record()
        engine = make_engine(model, record)
        engine.add(spec_of("a", list(range(190)), max_tokens=40))
        async with paced(model, engine) as lateness:
            await wait_for(lambda: "a" in record.finishes)
        late_s = lateness.late_s / lateness.num_steps
        assert STEP_S * 0.9 < engine.load().decode_step_s < STEP_S * 1.2 + 2 * late_s
        assert 190 / (0.2 + lateness.late_s) * 0.9 < engine.load().prefill_rate < 190 / 0.2 * 1.02

    asyncio.run(body())


def test_many_engines_pass_their_time_together() -> None:
    lateness, took_s = asyncio.run(serve(TIMED, [Record() for _ in range(20)], 20))
    assert lateness.num_steps == 400
    assert took_s < 400 * STEP_S / 2


def test_the_tokens_are_those_of_any_simulated_worker() -> None:
    record, stepped_record = Record(), Record()
    asyncio.run(serve(WITHOUT_TIME, [record], 30))
    stepped = make_engine(WITHOUT_TIME, stepped_record)
    stepped.add(spec_of("a", PROMPT, max_tokens=30))
    while stepped.step_once():
        pass
    assert record.tokens == stepped_record.tokens
    assert len(record.tokens["a"]) == 30


def test_a_sequence_that_comes_while_nothing_runs_is_begun() -> None:
    async def body() -> None:
        record = Record()
        engine = make_engine(TIMED, record)
        async with paced(TIMED, engine):
            for name in ("a", "b"):
                engine.add(spec_of(name, PROMPT, max_tokens=3))
                await wait_for(lambda name=name: name in record.finishes)  # type: ignore[misc]
        assert engine.load().free_blocks == NUM_BLOCKS

    asyncio.run(body())


def test_a_cancel_in_mid_step_gives_every_block_back() -> None:
    async def body() -> None:
        engine = make_engine(TIMED, Record())
        async with paced(TIMED, engine):
            engine.add(spec_of("a", PROMPT, max_tokens=500))
            await wait_for(lambda: engine.load().num_running == 1)
            assert engine.cancel("a")
            await wait_for(lambda: engine.load().free_blocks == NUM_BLOCKS)

    asyncio.run(body())


def test_an_engine_that_cannot_go_on_ends_its_sequences_and_says_so() -> None:
    async def body() -> None:
        record = Record()
        engine = make_engine(TIMED, record, BrokenRunner)
        engine.add(spec_of("a", PROMPT))
        pacing = asyncio.ensure_future(Pacer(engine, SimulatedTime(TIMED, ""), Lateness()).run())
        await wait_for(lambda: "a" in record.faults)
        engine.add(spec_of("b", PROMPT))
        with pytest.raises(InternalFault):
            await pacing
        assert "b" in record.faults
        assert engine.fault is not None

    asyncio.run(body())


class Surprised(Record):
    """A listener with a bug."""

    def on_step(self, output: StepOutput) -> None:
        if not output.events or output.events[0].fault is None:
            raise AssertionError


def test_an_engine_whose_step_dies_of_a_bug_ends_and_says_so() -> None:
    async def body() -> None:
        engine = make_engine(TIMED, Surprised())
        engine.add(spec_of("a", PROMPT, max_tokens=5))
        with pytest.raises(InternalFault):
            await Pacer(engine, SimulatedTime(TIMED, ""), Lateness()).run()
        assert not engine.is_healthy

    asyncio.run(body())
