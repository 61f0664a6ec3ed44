"""The figures of a replay, on readings made by hand."""

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.reading import Reading
from services.replay.report import Limits, Report, make_report, spread

LIMITS = Limits(ttft_s=0.5, itl_s=0.1)


def answered(
    due_s: float = 100.0, ttft_s: float = 0.25, itl_s: float = 0.0625, num_out: int = 5, worker: str = "w0"
) -> Reading:
    first_s = due_s + ttft_s
    last_s = first_s + itl_s * (num_out - 1)
    return Reading(
        due_s=due_s,
        sent_s=due_s + 0.125,
        first_s=first_s,
        last_s=last_s,
        ended_s=last_s,
        gaps_s=array("f", [itl_s] * (num_out - 1)),
        num_prompt=100,
        num_out=num_out,
        num_cached=40,
        worker=worker,
        prefill="local",
        finish="length",
    )


def failed(error: str, due_s: float = 100.0) -> Reading:
    return Reading(due_s=due_s, sent_s=due_s, ended_s=due_s + 9, error=error)


def report(*readings: Reading, speed: float = 1.0) -> Report:
    return make_report("one", list(readings), LIMITS, speed)


def test_a_good_answer_keeps_both_limits() -> None:
    made = report(
        answered(), answered(ttft_s=0.5), answered(ttft_s=0.75), answered(itl_s=0.25), answered(num_out=1)
    )
    assert made.good_share == 3 / 5
    assert made.goodput_per_s == pytest.approx(3 / made.duration_s)


def test_failed_requests_are_counted_by_type_and_are_not_good() -> None:
    made = report(answered(), failed("503 no_worker"), failed("disconnected"), failed("503 no_worker"))
    assert made.errors == {"503 no_worker": 2, "disconnected": 1}
    assert (made.num_requests, made.num_answered) == (4, 1)
    assert made.good_share == 1 / 4
    assert made.ttft_s == spread([0.25])
    assert made.duration_s == 9


def test_rates_count_from_the_first_request_to_the_last_end() -> None:
    made = report(answered(due_s=100), answered(due_s=101), answered(due_s=103.5))
    assert made.duration_s == 4
    assert (made.requests_per_s, made.tokens_per_s) == (3 / 4, 15 / 4)


def test_the_hit_rate_weighs_requests_by_their_tokens() -> None:
    long = answered()
    long.num_prompt, long.num_cached = 900, 160
    assert report(answered(), long).hit_rate == 200 / 1000


def test_shares_are_of_the_answers_whose_worker_is_known() -> None:
    made = report(*(answered(worker=worker) for worker in ("b", "a", "b", "b", "")), failed("disconnected"))
    assert made.shares == {"a": 0.25, "b": 0.75}
    assert list(made.shares) == ["a", "b"]


def test_prompts_prefilled_elsewhere_are_told() -> None:
    remote = answered()
    remote.prefill = "remote"
    assert report(remote, answered()).remote_share == 0.5


def test_a_mesh_that_runs_faster_is_told_in_the_seconds_of_the_trace() -> None:
    made = report(answered(), answered(due_s=101), speed=4.0)
    assert made.ttft_s == spread([1.0, 1.0])
    assert made.itl_s == spread([0.25] * 8)
    assert made.late_s == spread([0.5, 0.5])
    assert made.duration_s == 4 * 1.5
    assert made.good_share == 0


def test_a_late_player_hides_no_wait() -> None:
    reading = answered(ttft_s=0.75)
    reading.sent_s = reading.due_s + 0.7
    assert report(reading).ttft_s == spread([0.75])


def test_nothing_answered_is_nothing_measured() -> None:
    made = report(failed("no_responder"))
    assert (made.ttft_s, made.itl_s, made.hit_rate, made.shares) == (None, None, 0, {})
    assert report().duration_s == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_the_least_values_that_so_many_do_not_exceed(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    for percent, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        wanted = next(v for v in sorted(values) if sum(w <= v for w in values) * 100 >= percent * len(values))
        assert value == wanted
    assert math.isclose(found.mean, math.fsum(values) / len(values), rel_tol=1e-9, abs_tol=1e-9)


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 20), st.sampled_from(["", "503 overloaded"])), max_size=30
    )
)
def test_every_request_is_answered_or_counted_as_failed(asked: list[tuple[float, int, str]]) -> None:
    readings = [answered(ttft_s=ttft_s, num_out=num_out) for ttft_s, num_out, _ in asked]
    for reading, (_, _, error) in zip(readings, asked, strict=True):
        reading.error = error
    made = report(*readings)
    assert made.num_answered + sum(made.errors.values()) == made.num_requests == len(asked)
    assert 0 <= made.good_share <= (made.num_answered / len(asked) if asked else 0)
    assert sum(made.shares.values()) == pytest.approx(1 if made.num_answered else 0)
