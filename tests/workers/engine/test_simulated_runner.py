"""The simulated runner: tokens by formula, time by model, real memory; and the rates measured of steps."""

import ctypes
import math
import time

import pytest

from proto.logprobs import split_records, unpack_logprobs
from tests.workers.engine.engine_desk import Record, spec_of
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.rates import Rates
from workers.engine.runner import PromptScores, Runner, SampleParams, ScheduledSequence, StepBatch
from workers.engine.simulated_model import WITHOUT_TIME, SimulatedModel
from workers.engine.simulated_runner import LEAVE_S, SimulatedRunner

PROMPT = list(range(100))


def make_engine(model: SimulatedModel, record: Record, step_tokens: int = 256) -> Engine:
    settings = EngineSettings(num_blocks=64, context_tokens=512, step_tokens=step_tokens)
    return Engine(SimulatedRunner(model, num_blocks=64), settings, record)


def serve(tokens: list[int], max_tokens: int, step_tokens: int = 256) -> list[int]:
    record = Record()
    engine = make_engine(WITHOUT_TIME, record, step_tokens)
    engine.add(spec_of("a", tokens, num_prompt=len(PROMPT), max_tokens=max_tokens))
    while engine.step_once():
        pass
    return record.tokens["a"]


def test_another_attempt_in_other_chunks_goes_on_with_the_same_tokens() -> None:
    whole = serve(PROMPT, 40)
    assert len(set(whole)) > 30
    assert serve([*PROMPT, *whole[:13]], 40, step_tokens=80) == whole[13:]


def test_ends_do_not_come_before_they_may_and_every_token_has_its_record() -> None:
    runner = SimulatedRunner(SimulatedModel(first_token=7, num_tokens=3), num_blocks=1)
    told = SampleParams(logprobs=2)
    rows = [ScheduledSequence([token], 5, [0], told, token, banned=frozenset({7, 9})) for token in range(50)]
    scored = ScheduledSequence([4, 5, 6], 0, [0], None, 50, PromptScores([5, 6, 7], 1))
    *drawn, last = runner.run(StepBatch([*rows, scored]), None)
    assert {token for result in drawn for token in result.tokens} == {8}
    assert all(unpack_logprobs(result.logprobs).best[0][0] == 8 for result in drawn)
    assert last.tokens == []
    records = [unpack_logprobs(record) for record in split_records(last.prompt_logprobs, 3)]
    assert [record.best[0][0] for record in records] == [5, 6, 7]
    assert all(0 < math.exp(record.logprob) < 1 for record in records)


def test_tokens_stay_within_the_stated_range() -> None:
    runner = SimulatedRunner(SimulatedModel(first_token=7, num_tokens=3), num_blocks=1)
    rows = [ScheduledSequence([token], 5, [0], SampleParams(), token) for token in range(200)]
    assert {token for result in runner.run(StepBatch(rows), None) for token in result.tokens} == {7, 8, 9}


def test_the_pool_is_memory_of_the_stated_size_that_others_may_write() -> None:
    runner: Runner = SimulatedRunner(SimulatedModel(num_layers=3, head_dim=4), num_blocks=5, block_size=8)
    (pool,) = runner.pools
    assert pool.pool_bytes == 5 * 3 * 2 * 8 * 4 * 4
    ctypes.memset(pool.address, 7, pool.pool_bytes)
    assert ctypes.string_at(pool.address, pool.pool_bytes) == b"\x07" * pool.pool_bytes


def test_every_layer_is_named_once_in_order() -> None:
    runner = SimulatedRunner(SimulatedModel(num_layers=4), num_blocks=1)
    heard: list[tuple[int, ...]] = []
    batch = StepBatch([ScheduledSequence([1, 2], 0, [0], None, 0)])
    assert runner.run(batch, lambda *layers: heard.append(layers)) == []
    assert heard == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1)]


def test_no_step_ends_before_its_time_and_a_model_without_time_never_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefill = StepBatch([ScheduledSequence([1] * 10, 0, [0], None, 0)])
    timed = SimulatedRunner(SimulatedModel(step_s=0.002, prefill_token_s=0.001), num_blocks=1)
    began_s = time.monotonic()
    timed.run(prefill, None)
    assert time.monotonic() - began_s >= 0.012

    def forbidden(_: float) -> None:
        raise AssertionError("slept")

    monkeypatch.setattr("workers.engine.simulated_runner.time.sleep", forbidden)
    SimulatedRunner(WITHOUT_TIME, num_blocks=1).run(prefill, lambda _rank, _first, _count: None)


def test_first_tokens_of_steps_without_time_have_a_moment_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("workers.engine.simulated_runner.time.sleep", slept.append)
    runner = SimulatedRunner(WITHOUT_TIME, num_blocks=1)
    prompt = ScheduledSequence([1] * 10, 0, [0], SampleParams(), 0)
    decode = ScheduledSequence([1], 10, [0], SampleParams(), 1)
    for rows in ([decode], [prompt, decode], [decode], [prompt]):
        runner.run(StepBatch(rows), None)
    assert slept == []
    for _ in range(3):
        runner.run(StepBatch([decode]), None)
    assert slept == [LEAVE_S]


def test_waking_late_is_taken_off_the_next_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0

    def oversleep(wait_s: float) -> None:
        nonlocal now_s
        now_s += wait_s + 0.0005

    monkeypatch.setattr("workers.engine.simulated_runner.time.sleep", oversleep)
    monkeypatch.setattr("workers.engine.simulated_runner.time.monotonic", lambda: now_s)
    runner = SimulatedRunner(SimulatedModel(step_s=0.003), num_blocks=1)
    for _ in range(1000):
        runner.run(StepBatch([]), None)
    assert now_s - 100.0 == pytest.approx(3.0, abs=0.001)


def test_rates_are_nothing_until_measured_then_follow_the_steps() -> None:
    rates = Rates()
    assert (rates.prefill_rate, rates.decode_step_s) == (0.0, 0.0)
    rates.note_prefill(200, 0.1)
    assert rates.prefill_rate == pytest.approx(2000)
    assert rates.decode_step_s == 0.0
    for _ in range(100):
        rates.note_decode(1, 1.0, 0.02)
        rates.note_prefill(100, 0.2)
    assert rates.decode_step_s == pytest.approx(0.02)
    assert rates.prefill_rate == pytest.approx(500, rel=0.01)
