"""What is measured: rates with their trend, the cost of a step, quantiles, the traffic of all frontends."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from proto.traffic import LATENCY_BOUNDS_S, ModelTraffic
from services.planner.capability import CapabilityMeter
from services.planner.flow import Flow
from services.planner.histogram import add_counts, quantile_s, subtract_counts
from services.planner.step_cost import StepFit
from services.planner.traffic_meter import MeterRules, TrafficMeter

RULES = MeterRules(memory_s=10.0, window_s=10.0, ahead_s=0.0, quantile=0.9)


def test_a_constant_rate_is_found_however_it_is_cut() -> None:
    flow, chance = Flow(10.0), random.Random(7)
    for _ in range(2000):
        passed_s = chance.uniform(0.1, 2.0)
        flow.note(42.0 * passed_s, passed_s)
    assert flow.mean == pytest.approx(42.0)
    assert flow.forecast(5.0) == pytest.approx(42.0, rel=1e-3)


def test_a_step_of_a_rate_is_mostly_known_after_half_a_memory() -> None:
    flow = Flow(10.0)
    for _ in range(5):
        flow.note(100.0, 1.0)
    assert 60.0 < flow.forecast(0.0) < flow.forecast(5.0) < 110.0


def test_a_trend_is_drawn_on_but_not_far_from_what_came_lately() -> None:
    flow = Flow(10.0)
    for second in range(100):
        flow.note(10.0 * second, 1.0)
    assert flow.forecast(10.0) == pytest.approx(10.0 * 109, rel=0.05)
    for second in range(100, 0, -10):
        flow.note(10.0 * second, 1.0)
    assert 0.0 < flow.forecast(1000.0) < flow.mean


def test_the_cost_of_a_step_is_told_apart_from_that_of_its_sequences() -> None:
    fit = StepFit()
    for num in range(1, 33):
        fit.note(num, 0.008 + 0.0005 * num)
    cost = fit.cost()
    assert cost is not None
    assert cost.base_s == pytest.approx(0.008, rel=0.1)
    assert cost.sequence_s == pytest.approx(0.0005, rel=0.1)


def test_batches_all_alike_are_taken_for_half_and_half() -> None:
    fit = StepFit()
    assert fit.cost() is None
    for _ in range(100):
        fit.note(10, 0.02)
    cost = fit.cost()
    assert cost is not None
    assert cost.base_s == pytest.approx(0.01)
    assert cost.sequence_s == pytest.approx(0.001)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 512), st.floats(1e-5, 10.0)), min_size=1))
def test_whatever_is_reported_more_sequences_cost_more(reports: list[tuple[int, float]]) -> None:
    fit = StepFit()
    for num, step_s in reports:
        fit.note(num, step_s)
    cost = fit.cost()
    assert cost is not None
    assert cost.sequence_s > 0.0
    assert cost.base_s >= -1e-9
    assert cost.most_sequences(0.1) >= 1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=len(LATENCY_BOUNDS_S) + 1), st.floats(0.5, 0.99))
def test_a_quantile_is_the_one_of_all_that_was_counted(counts: list[int], quantile: float) -> None:
    bounds = (*LATENCY_BOUNDS_S, LATENCY_BOUNDS_S[-1])
    latencies = [bound for bound, count in zip(bounds, counts, strict=False) for _ in range(count)]
    naive_s = next(
        (each for place, each in enumerate(latencies, 1) if place >= quantile * len(latencies)), 0.0
    )
    assert quantile_s(counts, quantile) == naive_s


def test_counts_add_up_and_differ_where_ends_are_left_out() -> None:
    assert add_counts([[1, 2], [], [0, 0, 3]]) == [1, 2, 3]
    assert subtract_counts([1, 2, 3], [1]) == [0, 2, 3]


def _traffic(num: int, waiting: int = 0) -> ModelTraffic:
    return ModelTraffic(
        "m",
        num_begun=num,
        num_ended=num,
        prompt_tokens=100 * num,
        cached_tokens=25 * num,
        output_tokens=10 * num,
        answer_tokens=10 * num,
        ttft_counts=[0, num],
        itl_counts=[0, 0, 9 * num],
        num_waiting=waiting,
        waiting_tokens=100 * waiting,
    )


def test_frontends_add_up_and_their_coming_and_going_is_no_traffic() -> None:
    meter = TrafficMeter(RULES)
    meter.measure(0.0)
    for second in range(1, 201):
        meter.hear("a", _traffic(20 * second, waiting=2))
        if second > 50:
            meter.hear("b", _traffic(1_000_000 + 10 * second, waiting=3))
        if second == 150:
            meter.forget("b")
        meter.measure(float(second))
        if second == 149:
            both = meter.traffic()
    assert both.request_rate == pytest.approx(30.0, rel=0.01)
    assert both.prompt_rate == pytest.approx(30.0 * 75, rel=0.01)
    assert both.output_rate == pytest.approx(30.0 * 10, rel=0.01)
    assert (both.prompt_tokens, both.answer_tokens) == (75.0, 10.0)
    assert (both.num_waiting, both.waiting_tokens) == (5, 375.0)
    assert (both.ttft_s, both.itl_s) == (LATENCY_BOUNDS_S[1], LATENCY_BOUNDS_S[2])


def test_answers_that_become_longer_are_told_before_they_end() -> None:
    meter = TrafficMeter(RULES)
    meter.measure(0.0)
    for second in range(1, 41):
        meter.hear("a", _traffic(20 * second))
        meter.measure(float(second))
    assert meter.traffic().answer_tokens == 10.0
    before = _traffic(800)
    for second in range(1, 6):
        longer = msgspec.structs.replace(
            before,
            num_begun=before.num_begun + 20 * second,
            num_ended=before.num_ended + 5 * second,
            answer_tokens=before.answer_tokens + 50 * second,
            output_tokens=before.output_tokens + 400 * second,
        )
        meter.hear("a", longer)
        meter.measure(40.0 + second)
    assert 15.0 < meter.traffic().answer_tokens <= 20.0


def test_a_silence_of_all_is_made_good_and_taken_for_no_peak() -> None:
    meter = TrafficMeter(RULES)
    meter.measure(0.0)
    heard = [*range(1, 101), *range(130, 161)]
    for second in heard:
        meter.hear("a", _traffic(20 * second))
        meter.measure(float(second))
        if second > 60:
            assert meter.traffic().request_rate == pytest.approx(20.0, rel=0.02)


def test_latencies_of_another_split_are_forgotten() -> None:
    meter = TrafficMeter(RULES)
    meter.measure(0.0)
    for second in range(1, 6):
        meter.hear("a", _traffic(20 * second))
        meter.measure(float(second))
    assert meter.traffic().ttft_s > 0.0
    meter.forget_latencies()
    assert (meter.traffic().ttft_s, meter.traffic().itl_s) == (0.0, 0.0)
    assert meter.traffic().request_rate > 0.0


def test_fewer_requests_are_noisier() -> None:
    noises = []
    for rate in (1, 100):
        meter = TrafficMeter(RULES)
        meter.measure(0.0)
        for second in range(1, 100):
            meter.hear("a", _traffic(rate * second))
            meter.measure(float(second))
        noises.append(meter.traffic().noise)
    assert noises[0] == pytest.approx(10 * noises[1], rel=0.01)


def _report(role: Role, rate: float, running: int = 0, free_blocks: int = 90) -> LoadReport:
    return LoadReport(
        worker="w",
        model="m",
        incarnation="life",
        epoch=1,
        role=role,
        state=WorkerState.READY,
        num_running=running,
        max_sequences=64,
        total_blocks=100,
        free_blocks=free_blocks,
        prefill_rate=rate,
        decode_step_s=0.01 if running else 0.0,
    )


def test_a_prefill_worker_says_how_fast_prefill_is_and_until_then_a_decode_worker_does() -> None:
    meter = CapabilityMeter()
    assert meter.capability() is None
    meter.hear(_report(Role.DECODE, 500.0, running=1), None)
    found = meter.capability()
    assert found is not None
    assert found.prefill_rate == 500.0
    old = _report(Role.PREFILL, 500.0)
    meter.hear(old, _report(Role.DECODE, 500.0))  # what it measured in its other role
    meter.hear(_report(Role.PREFILL, 900.0), old)
    found = meter.capability()
    assert found is not None
    assert found.prefill_rate == 900.0


def test_blocks_bound_how_many_sequences_a_worker_may_have() -> None:
    meter = CapabilityMeter()
    meter.hear(_report(Role.DECODE, 500.0, running=4, free_blocks=60), None)
    found = meter.capability()
    assert found is not None
    assert found.most_sequences == pytest.approx(9.0)  # ten blocks each, and a tenth of the pool in reserve
