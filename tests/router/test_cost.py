"""The cost in seconds, term by term, and the rules that choose by it."""

import random
from collections import Counter
from typing import get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cost import REMOTE_TRIP_S, Candidates, Demand, PrefillPool, Terms, Weights, score
from router.policy import Policy, choose

WEIGHTS = Weights(slowdown=1.0, work=0.5, answer_tokens=100, remote_min_tokens=256, shortage_s=30.0)
IDLE = {
    "num_sequences": 0.0,
    "seats": 8.0,
    "waiting_tokens": 0.0,
    "free_blocks": 1000.0,
    "prefill_rate": 1000.0,
    "decode_step_s": 0.01,
    "hit_tokens": 0.0,
    "promised_sequences": 0.0,
    "promised_tokens": 0.0,
}
DEMAND = Demand(num_tokens=1000, answer_tokens=50, block_size=16)


def pool_of(*workers: tuple[float, float], hit_tokens: float = 0.0) -> PrefillPool:
    """Of prefill workers with so many tokens to compute, at such a rate."""
    jobs, rates = np.array(workers).reshape(-1, 2).T
    return PrefillPool(jobs, rates, np.full(len(jobs), hit_tokens))


def terms_of(
    workers: list[dict[str, float]], demand: Demand = DEMAND, pool: PrefillPool | None = None
) -> Terms:
    columns = {field: np.array([worker[field] for worker in workers]) for field in IDLE}
    return score(Candidates(**columns), demand, pool or pool_of(), WEIGHTS)


class Cost(msgspec.Struct):
    wait_s: float
    seat_s: float
    slowdown_s: float
    work_s: float
    shortage_s: float
    is_remote: bool
    total_s: float


def cost(worker: dict[str, float], demand: Demand = DEMAND, pool: PrefillPool | None = None) -> Cost:
    """Of one worker, which costs the same whoever is scored beside it."""
    alone = terms_of([worker], demand, pool)
    among = terms_of([IDLE, worker, IDLE | {"hit_tokens": 160.0, "num_sequences": 3.0}], demand, pool)
    fields = {field: getattr(alone, field)[0] for field in Cost.__struct_fields__}
    assert fields == {field: getattr(among, field)[1] for field in Cost.__struct_fields__}
    return Cost(**fields)


def test_an_idle_worker_costs_the_wait_for_its_prefill_and_the_work_of_it() -> None:
    terms = cost(IDLE)
    assert terms.wait_s == pytest.approx(1.0)
    assert terms.work_s == pytest.approx(0.5)
    assert terms.total_s == terms.wait_s + terms.work_s


def test_a_sibling_costs_less_where_their_prefix_is_on_its_way() -> None:
    there = IDLE | {"hit_tokens": 980, "promised_sequences": 1, "promised_tokens": 1000}
    assert cost(there).total_s < cost(IDLE).total_s


def test_a_prompt_leaves_a_worker_that_runs_others_for_a_prefill_worker_that_takes_longer() -> None:
    pool = pool_of((500, 1000.0))
    assert not cost(IDLE, pool=pool).is_remote
    busy = cost(IDLE | {"num_sequences": 1.0}, pool=pool)
    assert busy.is_remote
    assert busy.wait_s == pytest.approx(1.5 + REMOTE_TRIP_S)


def test_where_both_compute_alike_the_trip_keeps_a_prompt_where_it_is() -> None:
    assert not cost(IDLE, pool=pool_of((0, 1000.0))).is_remote
    assert not cost(IDLE, pool=pool_of((0, 1000.0 + REMOTE_TRIP_S * 900))).is_remote
    assert cost(IDLE, pool=pool_of((0, 1000.0 + REMOTE_TRIP_S * 1100))).is_remote


def test_a_prefix_that_a_prefill_worker_holds_is_not_computed_there() -> None:
    pool = pool_of((0, 1000.0), hit_tokens=800.0)
    for held in (0.0, 600.0):
        worker = IDLE | {"hit_tokens": held}
        assert cost(worker, pool=pool).wait_s == pytest.approx(0.2 + REMOTE_TRIP_S)
    more = cost(IDLE | {"hit_tokens": 700.0, "num_sequences": 1.0}, pool=pool_of((0, 1e3), hit_tokens=80.0))
    assert more.wait_s == pytest.approx(0.3 + REMOTE_TRIP_S)


def test_a_prefix_hit_saves_its_share_of_the_prefill() -> None:
    assert cost(IDLE | {"hit_tokens": 800}).wait_s == pytest.approx(0.2)


def test_what_waits_there_and_what_was_promised_come_first() -> None:
    busy = IDLE | {"waiting_tokens": 2000, "promised_sequences": 1, "promised_tokens": 500}
    assert cost(busy).wait_s == pytest.approx(3.5)


def test_a_slow_worker_costs_more() -> None:
    assert cost(IDLE | {"prefill_rate": 200.0}).wait_s == pytest.approx(5.0)


def test_a_long_prompt_waits_for_the_prefill_pool_where_that_is_quicker() -> None:
    pool = pool_of((9000, 1e4), (0, 4e3))
    terms = cost(IDLE, pool=pool)
    assert terms.is_remote
    assert terms.wait_s == pytest.approx(0.25 + REMOTE_TRIP_S)
    assert not cost(IDLE, pool=pool_of((10**6, 1e4))).is_remote


def test_length_decides_on_remote_prefill_and_not_the_miss() -> None:
    pool = pool_of((0, 1e9))
    assert not cost(IDLE, Demand(num_tokens=100, answer_tokens=50, block_size=16), pool).is_remote


def test_running_sequences_feel_a_local_prefill_and_not_a_remote_one() -> None:
    busy = IDLE | {"num_sequences": 4}
    pool = pool_of((0, 1e9))
    assert cost(busy).slowdown_s == pytest.approx(0.5 * (1.0 + 0.5))
    assert cost(busy, pool=pool).slowdown_s == pytest.approx(0.5 * 0.5)


def test_a_worker_without_a_free_seat_costs_the_wait_for_one() -> None:
    assert cost(IDLE | {"num_sequences": 7}).seat_s == 0.0
    assert cost(IDLE | {"num_sequences": 7, "promised_sequences": 1}).seat_s == pytest.approx(0.125)


def test_a_worker_short_of_blocks_is_the_last_choice() -> None:
    assert cost(IDLE | {"free_blocks": 63}).shortage_s == 0.0
    assert cost(IDLE | {"free_blocks": 62}).shortage_s == 30.0
    assert cost(IDLE | {"free_blocks": 63, "promised_sequences": 1, "promised_tokens": 16}).shortage_s == 30.0
    assert cost(IDLE | {"free_blocks": 13, "hit_tokens": 800}).shortage_s == 0.0


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
    here = IDLE | {"num_sequences": sequences, "waiting_tokens": waiting, "hit_tokens": hit}
    busier = here | {"promised_sequences": promised, "promised_tokens": tokens}
    assert 0 <= cost(here).total_s <= cost(busier).total_s


class Choices:
    """What a policy chooses among workers of such a cost, so many sequences each."""

    def __init__(self, **loads: tuple[float, int]) -> None:
        self.workers = sorted(loads)
        self.total_s = np.array([loads[worker][0] for worker in self.workers])
        self.load = np.array([loads[worker][1] / 8 for worker in self.workers])

    def picks(self, policy: Policy, without: str = "", times: int = 300) -> Counter[str]:
        draw = random.Random(1)
        eligible = np.array([place for place, worker in enumerate(self.workers) if worker != without])
        return Counter(
            self.workers[choose(policy, self.total_s, self.load, eligible, turn, draw)]
            for turn in range(times)
        )


def test_the_lowest_cost_wins_and_ties_fall_at_random() -> None:
    choices = Choices(a=(1.0, 0), b=(0.5, 7), c=(0.5, 7))
    counts = choices.picks("kv")
    assert counts["a"] == 0
    assert 100 < counts["b"] < 200
    assert choices.picks("kv", without="b") == {"c": 300}


def test_round_robin_takes_each_in_turn() -> None:
    choices = Choices(c=(9.0, 1), a=(1.0, 2), b=(2.0, 3))
    assert choices.picks("round_robin") == {"a": 100, "b": 100, "c": 100}
    assert choices.picks("round_robin", without="a") == {"b": 150, "c": 150}


def test_random_takes_any() -> None:
    assert min(Choices(a=(9.0, 7), b=(1.0, 0)).picks("random").values()) > 100


def test_least_loaded_looks_at_load_alone() -> None:
    assert Choices(a=(9.0, 1), b=(0.1, 2)).picks("least_loaded") == {"a": 300}


def test_power_of_two_never_takes_the_most_loaded_and_spreads_over_the_rest() -> None:
    choices = Choices(a=(0.0, 1), b=(0.0, 2), c=(0.0, 3))
    counts = choices.picks("power_of_two")
    assert counts["c"] == 0
    assert counts["a"] > counts["b"] > 50
    assert choices.picks("power_of_two", without="a") == {"b": 300}


@pytest.mark.parametrize("policy", get_args(Policy))
def test_no_policy_takes_one_that_is_not_eligible(policy: Policy) -> None:
    choices = Choices(a=(0.0, 0), b=(1.0, 1), c=(2.0, 2))
    assert "a" not in choices.picks(policy, without="a")
    assert choices.picks(policy, without="b")["b"] == 0
