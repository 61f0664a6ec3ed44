"""The engine's thread: its start, its rest, its end by order and by fault."""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from proto.errors import InternalFault
from tests.workers.engine.engine_desk import Record, small_settings, spec_of
from tests.workers.engine.witness_runner import WitnessRunner, expect_tokens
from workers.engine.engine import Engine
from workers.engine.engine_thread import EngineThread
from workers.engine.runner import RunnerEnded
from workers.engine.step import StepOutput

PROMPT = [5, 6, 7, 8, 9, 10]
LIMIT_S = 10.0


@dataclass
class WaitableRecord(Record):
    """A record that another thread can wait on."""

    heard: threading.Condition = field(default_factory=threading.Condition)

    def on_step(self, output: StepOutput) -> None:
        with self.heard:
            super().on_step(output)
            self.heard.notify_all()

    def wait_until(self, is_met: Callable[[], bool]) -> None:
        with self.heard:
            assert self.heard.wait_for(is_met, LIMIT_S)


@dataclass
class FaultyRecord(Record):
    """A record that cannot take its first step."""

    is_broken: bool = True

    def on_step(self, output: StepOutput) -> None:
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("told to fail")
        super().on_step(output)


def test_sequences_added_at_rest_are_served_and_the_thread_ends_with_its_context() -> None:
    record = WaitableRecord()
    engine = Engine(WitnessRunner(12, 4), small_settings(), record)
    with EngineThread(engine) as thread:
        for name in ("a", "b", "c"):
            engine.add(spec_of(name, PROMPT))
            record.wait_until(lambda name=name: name in record.finishes)  # type: ignore[misc]
        assert engine.is_healthy
    assert not thread.is_alive
    assert record.tokens["c"] == expect_tokens(spec_of("c", PROMPT), 40)[0]


def test_every_verb_that_makes_work_wakes_a_resting_thread() -> None:
    record = WaitableRecord()
    runner = WitnessRunner(12, 4)
    engine = Engine(runner, small_settings(), record)
    with EngineThread(engine):
        engine.add(spec_of("recalled", PROMPT), await_kv=True)
        engine.recall("recalled")
        record.wait_until(lambda: "recalled" in record.finishes)
        engine.add(spec_of("landed", [30, *PROMPT]), await_kv=True)
        blocks = engine.set_aside("landed", 6)
        runner.fill(blocks, [30, *PROMPT][:6], 0)
        engine.land("landed", blocks, 6)
        record.wait_until(lambda: "landed" in record.finishes)
        engine.add(spec_of("awaiting", [31] * 30), await_kv=True)
        blocks = engine.set_aside("awaiting", 29)
        engine.add(spec_of("late", [32] * 30))
        engine.give_back(blocks)
        record.wait_until(lambda: "late" in record.finishes)
    assert record.tokens["landed"] == expect_tokens(spec_of("landed", [30, *PROMPT]), 40)[0]


def test_a_thread_that_cannot_go_on_ends_every_sequence_and_takes_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    record = FaultyRecord()
    engine = Engine(WitnessRunner(12, 4), small_settings(max_sequences=1), record)
    for name in ("running", "waiting"):
        engine.add(spec_of(name, PROMPT))
    engine.add(spec_of("awaiting", PROMPT), await_kv=True)
    thread = EngineThread(engine)
    with thread:
        thread.wait_ended(LIMIT_S)
    assert record.faults.keys() == {"running", "waiting", "awaiting"}
    assert not engine.is_healthy
    assert engine.load().free_blocks == 12
    with pytest.raises(InternalFault):
        engine.add(spec_of("another", PROMPT))


def test_a_runner_that_has_ended_ends_its_engine_with_the_reason_at_the_first_step() -> None:
    record = WaitableRecord()
    runner = WitnessRunner(12, 4)
    engine = Engine(runner, small_settings(max_sequences=1), record)

    def end() -> None:
        raise RunnerEnded("rank 1 has gone")

    runner.during = end
    for name in ("running", "waiting"):
        engine.add(spec_of(name, PROMPT))
    thread = EngineThread(engine)
    with thread:
        assert thread.wait_ended(LIMIT_S)
    assert record.faults.keys() == {"running", "waiting"}
    assert engine.fault is not None
    assert engine.fault.values["reason"] == "rank 1 has gone"


def test_a_step_that_does_not_return_is_a_fault_until_it_does() -> None:
    record = WaitableRecord()
    runner = WitnessRunner(12, 4)
    engine = Engine(runner, small_settings(step_stall_s=0.001), record)
    has_begun, may_end = threading.Event(), threading.Event()

    def stall() -> None:
        has_begun.set()
        assert may_end.wait(LIMIT_S)

    runner.during = stall
    with EngineThread(engine) as thread:
        engine.add(spec_of("a", PROMPT, max_tokens=1))
        assert has_begun.wait(LIMIT_S)
        assert not thread.wait_ended(0.002)  # longer than a step may take
        health = [engine.is_healthy]
        may_end.set()
        record.wait_until(lambda: "a" in record.finishes)
        health.append(engine.is_healthy)
        assert health == [False, True]
        engine.stop()
        assert thread.wait_ended(LIMIT_S)


def test_the_thread_alone_yields_to_the_others() -> None:
    record = WaitableRecord()
    runner = WitnessRunner(12, 4)
    engine = Engine(runner, small_settings(), record)
    found: list[int] = []
    runner.during = lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with EngineThread(engine, niceness=before + 3):
        engine.add(spec_of("a", PROMPT, max_tokens=1))
        record.wait_until(lambda: "a" in record.finishes)
    assert found == [before + 3]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
