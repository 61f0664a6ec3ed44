"""Loads that are made: their sharing, their skew and their arrivals are those that were asked for."""

import math
from collections import Counter
from itertools import pairwise

import pytest

from services.replay.arrivals import Bursts
from services.replay.generators import Shape, burst, multi_turn, shared_prefix, zipf
from services.replay.trace import BLOCK_TOKENS, TraceRequest, num_blocks, possible_hit_rate

SHAPE = Shape(num_requests=4000, rate_per_s=20.0, input_tokens=300, output_tokens=64)
BURSTS = Bursts(period_s=20.0, burst_s=2.0, factor=10.0)
LOADS = {
    "shared_prefix": lambda shape: shared_prefix(shape, 8, 4),
    "zipf": lambda shape: zipf(shape, 50, 4, 1.0),
    "burst": lambda shape: burst(shape, 8, 4, BURSTS),
    "multi_turn": lambda shape: multi_turn(shape, 8, 1, 5.0),
}


def prefix_counts(trace: list[TraceRequest], prefix_blocks: int) -> Counter[tuple[int, ...]]:
    return Counter(request.hash_ids[:prefix_blocks] for request in trace)


def span_s(trace: list[TraceRequest]) -> float:
    return (trace[-1].timestamp - trace[0].timestamp) / 1e3


@pytest.mark.parametrize("load", LOADS)
def test_a_load_is_whole_in_order_and_the_same_for_the_same_seed(load: str) -> None:
    trace = LOADS[load](SHAPE)
    assert len(trace) == SHAPE.num_requests
    assert all(early.timestamp <= late.timestamp for early, late in pairwise(trace))
    assert all(len(request.hash_ids) == num_blocks(request.input_length) for request in trace)
    assert {request.output_length for request in trace} == set(range(32, 97))
    assert LOADS[load](SHAPE) == trace
    assert LOADS[load](Shape(4000, 20.0, 300, 64, seed=1)) != trace


@pytest.mark.parametrize("load", ["shared_prefix", "zipf", "burst"])
def test_requests_come_at_the_rate_and_bring_the_new_tokens_that_were_asked_for(load: str) -> None:
    trace = LOADS[load](SHAPE)
    assert SHAPE.num_requests / span_s(trace) == pytest.approx(SHAPE.rate_per_s, rel=0.1)
    new = [request.input_length - 4 * BLOCK_TOKENS for request in trace]
    assert (min(new), max(new)) == (150, 450)
    assert sum(new) / len(new) == pytest.approx(300, rel=0.02)


def test_gaps_of_a_steady_load_are_as_uneven_as_those_of_independent_clients() -> None:
    times = [request.timestamp for request in shared_prefix(SHAPE, 8, 4)]
    gaps = [late - early for early, late in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation / mean == pytest.approx(1, abs=0.1)


def test_prefixes_are_shared_alike_and_nothing_else_is() -> None:
    trace = shared_prefix(SHAPE, 8, 4)
    counts = prefix_counts(trace, 4)
    assert len(counts) == 8
    assert all(count == pytest.approx(500, rel=0.2) for count in counts.values())
    own = [block for request in trace for block in request.hash_ids[4:]]
    assert len(own) == len(set(own))
    assert possible_hit_rate(trace) == pytest.approx(2048 / 2348, abs=0.01)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_the_second_document_of_zipf_is_asked_for_as_the_exponent_says(exponent: float) -> None:
    counts = sorted(prefix_counts(zipf(SHAPE, 100, 2, exponent), 2).values(), reverse=True)
    weights = [rank**-exponent for rank in range(1, 101)]
    assert counts[0] / SHAPE.num_requests == pytest.approx(weights[0] / sum(weights), rel=0.15)
    assert counts[0] / counts[9] == pytest.approx(10**exponent, rel=0.3)


def test_without_an_exponent_zipf_has_no_favourites() -> None:
    counts = prefix_counts(zipf(SHAPE, 10, 2, 0.0), 2)
    assert all(count == pytest.approx(400, rel=0.2) for count in counts.values())


def test_bursts_bring_so_many_times_as_many_requests_a_second() -> None:
    trace = burst(SHAPE, 8, 4, BURSTS)
    num_burst = sum(BURSTS.is_burst(request.timestamp / 1e3) for request in trace)
    periods = trace[-1].timestamp / 1e3 / BURSTS.period_s
    burst_rate = num_burst / (periods * BURSTS.burst_s)
    quiet_rate = (len(trace) - num_burst) / (periods * (BURSTS.period_s - BURSTS.burst_s))
    assert burst_rate / quiet_rate == pytest.approx(BURSTS.factor, rel=0.15)


def test_bursts_that_never_pause_are_a_steady_load() -> None:
    always = Bursts(period_s=5.0, burst_s=5.0, factor=7.0)
    trace = burst(SHAPE, 8, 4, always)
    assert SHAPE.num_requests / span_s(trace) == pytest.approx(SHAPE.rate_per_s, rel=0.1)


def test_every_turn_repeats_the_session_so_far_and_adds_to_it() -> None:
    shape = Shape(num_requests=60, rate_per_s=0.01, input_tokens=700, output_tokens=100)
    trace = multi_turn(shape, 6, 2, pause_s=1.0)  # sessions hardly overlap
    sessions = [trace[first : first + 6] for first in range(0, 60, 6)]
    for session in sessions:
        for before, after in pairwise(session):
            whole = before.input_length // BLOCK_TOKENS
            assert after.hash_ids[:whole] == before.hash_ids[:whole]
            new = after.input_length - before.input_length - before.output_length
            assert 350 <= new <= 1050
            cut = before.hash_ids[whole:]
            assert not set(cut) & set(after.hash_ids)  # the block goes on: it is another one
    assert len({session[0].hash_ids[:2] for session in sessions}) == 1
    later = [set(session[-1].hash_ids[2:]) for session in sessions]
    assert len(set().union(*later)) == sum(map(len, later))


def test_sessions_begin_at_the_rate_that_makes_the_rate_of_requests() -> None:
    trace = multi_turn(SHAPE, 8, 1, pause_s=2.0)
    half = trace[1000:3000]  # the first sessions have no neighbours yet, the last none any more
    assert len(half) / span_s(half) == pytest.approx(SHAPE.rate_per_s, rel=0.2)
