"""The cost in seconds, term by term, and the rules that choose by it."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cost import Candidate, Demand, PrefillWorker, Terms, Weights, score
from router.policy import Policy, Scored, choose
from router.predictions import PromisedLoad

WEIGHTS = Weights(slowdown=1.0, work=0.5, answer_tokens=100, remote_min_tokens=256, shortage_s=30.0)
IDLE = Candidate(
    worker="w",
    epoch=1,
    num_sequences=0,
    max_sequences=8,
    waiting_tokens=0,
    free_blocks=1000,
    prefill_rate=1000.0,
    decode_step_s=0.01,
    hit_tokens=0,
)
DEMAND = Demand(num_tokens=1000, answer_tokens=50, block_size=16)


def with_(candidate: Candidate, **fields: object) -> Candidate:
    return msgspec.structs.replace(candidate, **fields)


def cost(candidate: Candidate, demand: Demand = DEMAND, pool: list[PrefillWorker] | None = None) -> Terms:
    return score(candidate, demand, pool or [], WEIGHTS)


def test_an_idle_worker_costs_the_wait_for_its_prefill_and_the_work_of_it() -> None:
    terms = cost(IDLE)
    assert terms.wait_s == pytest.approx(1.0)
    assert terms.work_s == pytest.approx(0.5)
    assert terms.total_s == terms.wait_s + terms.work_s


def test_a_sibling_costs_less_where_their_prefix_is_on_its_way() -> None:
    there = with_(IDLE, hit_tokens=980, promised=PromisedLoad(1, 1000))
    assert cost(there).total_s < cost(IDLE).total_s


def test_a_prefix_hit_saves_its_share_of_the_prefill() -> None:
    assert cost(with_(IDLE, hit_tokens=800)).wait_s == pytest.approx(0.2)


def test_what_waits_there_and_what_was_promised_come_first() -> None:
    busy = with_(IDLE, waiting_tokens=2000, promised=PromisedLoad(1, 500))
    assert cost(busy).wait_s == pytest.approx(3.5)


def test_a_slow_worker_costs_more() -> None:
    assert cost(with_(IDLE, prefill_rate=200.0)).wait_s == pytest.approx(5.0)


def test_a_long_prompt_waits_for_the_prefill_pool_where_that_is_quicker() -> None:
    pool = [PrefillWorker(job_tokens=9000, prefill_rate=1e4), PrefillWorker(job_tokens=0, prefill_rate=4e3)]
    terms = cost(IDLE, pool=pool)
    assert terms.is_remote
    assert terms.wait_s == pytest.approx(0.25)
    assert not cost(IDLE, pool=[PrefillWorker(job_tokens=10**6, prefill_rate=1e4)]).is_remote


def test_length_decides_on_remote_prefill_and_not_the_miss() -> None:
    pool = [PrefillWorker(job_tokens=0, prefill_rate=1e9)]
    assert not cost(IDLE, Demand(num_tokens=100, answer_tokens=50, block_size=16), pool).is_remote


def test_running_sequences_feel_a_local_prefill_and_not_a_remote_one() -> None:
    busy = with_(IDLE, num_sequences=4)
    pool = [PrefillWorker(job_tokens=0, prefill_rate=1e9)]
    assert cost(busy).slowdown_s == pytest.approx(0.5 * (1.0 + 0.5))
    assert cost(busy, pool=pool).slowdown_s == pytest.approx(0.5 * 0.5)


def test_a_worker_without_a_free_seat_costs_the_wait_for_one() -> None:
    assert cost(with_(IDLE, num_sequences=7)).seat_s == 0.0
    assert cost(with_(IDLE, num_sequences=7, promised=PromisedLoad(1, 0))).seat_s == pytest.approx(0.125)


def test_a_worker_short_of_blocks_is_the_last_choice() -> None:
    assert cost(with_(IDLE, free_blocks=63)).shortage_s == 0.0
    assert cost(with_(IDLE, free_blocks=62)).shortage_s == 30.0
    assert cost(with_(IDLE, free_blocks=63, promised=PromisedLoad(1, 16))).shortage_s == 30.0
    assert cost(with_(IDLE, free_blocks=13, hit_tokens=800)).shortage_s == 0.0


@given(
    st.integers(0, 100),
    st.integers(0, 10_000),
    st.integers(0, 999),
    st.integers(0, 100),
    st.integers(0, 5000),
)
def test_more_load_never_costs_less(
    sequences: int, waiting: int, hit: int, promised: int, tokens: int
) -> None:
    here = with_(IDLE, num_sequences=sequences, waiting_tokens=waiting, hit_tokens=hit)
    busier = with_(here, promised=PromisedLoad(promised, tokens))
    assert 0 <= cost(here).total_s <= cost(busier).total_s


def scored(**loads: tuple[float, int]) -> list[Scored]:
    return [
        Scored(
            with_(IDLE, worker=worker, num_sequences=sequences),
            Terms(total_s, 0.0, 0.0, 0.0, 0.0, hit_tokens=0, is_remote=False),
        )
        for worker, (total_s, sequences) in loads.items()
    ]


def picks(policy: Policy, among: list[Scored], times: int = 300) -> Counter[str]:
    draw = random.Random(1)
    return Counter(choose(policy, among, turn, draw).candidate.worker for turn in range(times))


def test_the_lowest_cost_wins_and_ties_fall_at_random() -> None:
    counts = picks("kv", scored(a=(1.0, 0), b=(0.5, 7), c=(0.5, 7)))
    assert counts["a"] == 0
    assert 100 < counts["b"] < 200


def test_round_robin_takes_each_in_turn() -> None:
    assert picks("round_robin", scored(c=(9.0, 1), a=(1.0, 2), b=(2.0, 3))) == {"a": 100, "b": 100, "c": 100}


def test_random_takes_any() -> None:
    assert min(picks("random", scored(a=(9.0, 7), b=(1.0, 0))).values()) > 100


def test_least_loaded_looks_at_load_alone() -> None:
    assert picks("least_loaded", scored(a=(9.0, 1), b=(0.1, 2))) == {"a": 300}


def test_power_of_two_never_takes_the_most_loaded_and_spreads_over_the_rest() -> None:
    counts = picks("power_of_two", scored(a=(0.0, 1), b=(0.0, 2), c=(0.0, 3)))
    assert counts["c"] == 0
    assert counts["a"] > counts["b"] > 50
