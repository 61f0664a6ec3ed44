"""Rate matching: what so many workers can take grows with them, and more load never wants fewer of them."""

from math import inf

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.planner.rate_match import (
    Capability,
    Limits,
    Load,
    Match,
    Split,
    choose_split,
    mean_wait_s,
    wanted_workers,
)
from services.planner.step_cost import StepCost

LIMITS = Limits(ttft_s=1.0, itl_s=0.02)
CAPABILITY = Capability(prefill_rate=20_000.0, step=StepCost(0.008, 0.0005), most_sequences=64.0)
FLOOR = Split(1, 1)


def _match(prompt_rate: float, output_rate: float, prompt_tokens: float = 1000.0) -> Match:
    return Match(Load(prompt_rate, output_rate, prompt_tokens), CAPABILITY, LIMITS)


def _numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


MATCHES = st.builds(
    Match,
    st.builds(Load, _numbers(0.0, 1e6), _numbers(0.0, 1e5), _numbers(1.0, 1e5)),
    st.builds(
        Capability,
        _numbers(10.0, 1e5),
        st.builds(StepCost, _numbers(1e-4, 0.2), _numbers(1e-6, 0.05)),
        _numbers(1.0, 512.0),
    ),
    st.builds(Limits, _numbers(0.01, 30.0), _numbers(0.001, 1.0), _numbers(0.5, 0.99), _numbers(0.3, 0.95)),
)


@pytest.mark.parametrize(
    ("prompt_rate", "output_rate", "split"),
    [
        (95_000.0, 1_800.0, Split(6, 2)),
        (9_000.0, 6_500.0, Split(1, 7)),
        (60_000.0, 4_000.0, Split(4, 4)),
        (0.0, 100.0, Split(1, 7)),
        (100.0, 0.0, Split(7, 1)),
    ],
)
def test_the_split_follows_what_comes(prompt_rate: float, output_rate: float, split: Split) -> None:
    assert choose_split(_match(prompt_rate, output_rate), 8, FLOOR) == split


def test_decode_workers_take_as_many_sequences_as_the_itl_limit_allows() -> None:
    assert _match(0.0, 1.0).decode_capacity(2) == pytest.approx(2 * 0.9 * 24 / 0.02)
    few = msgspec.structs.replace(CAPABILITY, most_sequences=4.0)
    assert Match(Load(0.0, 1.0, 1.0), few, LIMITS).decode_capacity(1) == pytest.approx(0.9 * 4 / 0.01)


def test_what_waits_at_the_capacity_is_in_time() -> None:
    for num_workers in (1, 2, 8):
        for prompt_tokens in (200.0, 4_000.0, 12_000.0):
            match = _match(1.0, 1.0, prompt_tokens)
            own_s = prompt_tokens / CAPABILITY.prefill_rate
            wait_s = mean_wait_s(num_workers, match.most_busy(num_workers), own_s)
            assert own_s + 2.302 * wait_s <= LIMITS.ttft_s
            assert match.prefill_capacity(num_workers) <= 0.9 * num_workers * CAPABILITY.prefill_rate


def test_a_tighter_limit_on_first_tokens_wants_more_prefill_workers() -> None:
    loose = _match(40_000.0, 3_000.0, 4_000.0)
    tight = msgspec.structs.replace(loose, limits=Limits(ttft_s=0.3, itl_s=0.02))
    assert wanted_workers(tight, FLOOR, 1.1).prefill > wanted_workers(loose, FLOOR, 1.1).prefill


def test_without_prefill_workers_prompts_hold_up_answers() -> None:
    match = _match(10_000.0, 500.0)
    alone, apart = match.headroom(Split(0, 4)), match.headroom(Split(1, 3))
    assert alone.prefill < 1.0 < apart.least
    assert alone.decode < match.headroom(Split(1, 4)).decode
    assert choose_split(match, 4, Split(0, 1)).prefill > 0
    assert choose_split(_match(10.0, 3_000.0), 4, Split(0, 1)) == Split(0, 4)


def test_no_load_leaves_all_the_headroom_there_is() -> None:
    assert _match(0.0, 0.0).headroom(Split(1, 1)).least == inf


@settings(max_examples=60, deadline=None)
@given(MATCHES, st.integers(1, 20), st.integers(0, 4), st.integers(1, 4))
def test_a_split_keeps_the_least_numbers(match: Match, num: int, prefill: int, decode: int) -> None:
    split = choose_split(match, num, Split(prefill, decode))
    assert split.num_workers == num
    assert split.decode >= min(decode, num)
    assert split.prefill >= min(prefill, max(0, num - decode))


@settings(max_examples=60, deadline=None)
@given(MATCHES, st.integers(1, 20), _numbers(1.0, 5.0), st.integers(0, 1))
def test_more_prompts_never_want_fewer_prefill_workers(
    match: Match, num: int, more: float, least: int
) -> None:
    load = match.load
    heavier = msgspec.structs.replace(
        match, load=msgspec.structs.replace(load, prompt_rate=more * load.prompt_rate)
    )
    floor = Split(max(1, least), 1)
    assert choose_split(heavier, num, floor).prefill >= choose_split(match, num, floor).prefill
    before, after = wanted_workers(match, floor, 1.1), wanted_workers(heavier, floor, 1.1)
    assert after.prefill >= before.prefill
    assert after.decode == before.decode


@settings(max_examples=60, deadline=None)
@given(MATCHES, st.integers(1, 20), _numbers(1.0, 5.0))
def test_more_answers_never_want_fewer_decode_workers(match: Match, num: int, more: float) -> None:
    load = match.load
    heavier = msgspec.structs.replace(
        match, load=msgspec.structs.replace(load, output_rate=more * load.output_rate)
    )
    assert choose_split(heavier, num, FLOOR).decode >= choose_split(match, num, FLOOR).decode
    assert wanted_workers(heavier, FLOOR, 1.1).decode >= wanted_workers(match, FLOOR, 1.1).decode


@settings(max_examples=60, deadline=None)
@given(MATCHES, st.integers(1, 30))
def test_one_worker_more_can_take_more(match: Match, num: int) -> None:
    assert match.prefill_capacity(num + 1) > match.prefill_capacity(num) * (1 + 1e-9)
    assert match.decode_capacity(num + 1) > match.decode_capacity(num)
