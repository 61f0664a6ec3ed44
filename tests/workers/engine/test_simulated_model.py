"""The model of time: what each of its numbers adds, and what stretches all of them."""

import statistics
from typing import Any

import msgspec
import pytest

from workers.engine.runner import SampleParams, ScheduledSequence
from workers.engine.simulated_model import WITHOUT_TIME, SimulatedModel, SimulatedTime


def model_of(**fields: Any) -> SimulatedModel:
    return msgspec.structs.replace(WITHOUT_TIME, **fields)


def step_s(model: SimulatedModel, *rows: ScheduledSequence) -> float:
    return SimulatedTime(model, "w").step_s(rows)


def decoding(context: int) -> ScheduledSequence:
    return ScheduledSequence([1], context - 1, [0], SampleParams(), 0)


def prefilling(num_tokens: int, start: int = 0) -> ScheduledSequence:
    return ScheduledSequence([1] * num_tokens, start, [0], None, 0)


def test_a_step_of_decodes_takes_its_base_its_sequences_and_their_context() -> None:
    model = model_of(step_s=0.01, sequence_s=0.001, context_token_s=0.00001)
    assert step_s(model, decoding(100)) == pytest.approx(0.01 + 0.001 + 0.001)
    assert step_s(model, decoding(100), decoding(300)) == pytest.approx(0.01 + 0.002 + 0.004)


def test_a_prompt_takes_time_for_each_token_and_more_the_later_they_stand() -> None:
    even = model_of(prefill_token_s=0.001, prefill_doubling_tokens=0)
    assert step_s(even, prefilling(100), decoding(5000)) == pytest.approx(0.1)
    assert step_s(even, prefilling(100, start=10_000)) == pytest.approx(0.1)
    rising = model_of(prefill_token_s=0.001, prefill_doubling_tokens=1000)
    assert step_s(rising, prefilling(200, start=900)) == pytest.approx(0.4)
    in_chunks = [step_s(rising, prefilling(100, start=start)) for start in range(0, 1000, 100)]
    assert sum(in_chunks) == pytest.approx(step_s(rising, prefilling(1000)))


def test_slowness_may_change_and_speed_up_divides_everything() -> None:
    rows = [prefilling(50), decoding(1000)]
    plain = model_of(step_s=0.01, context_token_s=0.00001, prefill_token_s=0.001)
    time = SimulatedTime(msgspec.structs.replace(plain, speed_up=10.0, slowness=2.0), "w")
    assert time.step_s(rows) == pytest.approx(step_s(plain, *rows) * 2 / 10)
    time.slowness = 5.0
    assert time.step_s(rows) == pytest.approx(step_s(plain, *rows) * 5 / 10)


def test_jitter_keeps_the_mean_and_its_bounds_and_is_each_workers_own() -> None:
    model = model_of(step_s=0.01, jitter=0.3)
    one, again, other = (SimulatedTime(model, seed) for seed in ("w0", "w0", "w1"))
    steps = [one.step_s([]) for _ in range(2000)]
    assert statistics.mean(steps) == pytest.approx(0.01, rel=0.02)
    assert 0.007 <= min(steps) < 0.0075
    assert 0.0125 < max(steps) <= 0.013
    assert [again.step_s([]) for _ in range(2000)] == steps
    assert [other.step_s([]) for _ in range(2000)] != steps
