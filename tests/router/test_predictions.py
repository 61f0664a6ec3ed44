"""Promises count once: from the choice until the worker says so itself, or too long."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from router.block_table import Keys
from router.kv_index import NEVER_ZERO
from router.predictions import Predictions, Promise, PromisedLoad
from router.slots import Slots
from tests.router.reaches import reach_of

TTL_S = 10.0
SLOTS = Slots()


def promise(
    number: int, keys: list[int], *, worker: str = "w", router: str = "r", made_s: float = 0.0
) -> Promise:
    return Promise(router, number, worker, new_tokens=16, keys=as_keys(keys), made_s=made_s)


def make(limit_per_worker: int) -> Predictions:
    return Predictions(TTL_S, limit_per_worker, SLOTS)


def as_keys(keys: list[int]) -> Keys:
    return np.array(keys, np.int64) | NEVER_ZERO


def matched(predictions: Predictions, keys: list[int]) -> dict[str, int]:
    return reach_of(predictions.match(as_keys(keys)), SLOTS)


def nothing_stored(keys: Keys) -> NDArray[np.bool_]:
    return np.zeros(len(keys), np.bool_)


def everything_stored(keys: Keys) -> NDArray[np.bool_]:
    return np.ones(len(keys), np.bool_)


def test_a_sibling_follows_a_choice_that_no_event_confirms_yet() -> None:
    predictions = make(10)
    predictions.note(promise(1, [1, 2, 3]))
    assert matched(predictions, [1, 2, 9]) == {"w": 2}
    assert predictions.load_of("w") == PromisedLoad(1, 16)


def test_load_counts_once_but_the_prefix_until_it_is_stored() -> None:
    predictions = make(10)
    predictions.note(promise(1, [1, 2]))
    predictions.settle("w", {"r": 1}, nothing_stored, 1.0)
    assert predictions.load_of("w") == PromisedLoad()
    assert matched(predictions, [1, 2]) == {"w": 2}
    predictions.settle("w", {"r": 1}, everything_stored, 2.0)
    assert matched(predictions, [1, 2]) == {}
    assert len(predictions) == 0


def test_a_report_from_before_the_choice_settles_nothing() -> None:
    predictions = make(10)
    predictions.note(promise(5, [1]))
    predictions.settle("w", {"r": 4, "other": 9}, everything_stored, 1.0)
    assert predictions.load_of("w").num_sequences == 1


def test_a_choice_heard_after_the_report_that_includes_it_is_no_load() -> None:
    predictions = make(10)
    predictions.settle("w", {"r": 7}, nothing_stored, 1.0)
    predictions.note(promise(7, [1]))
    assert predictions.load_of("w") == PromisedLoad()
    assert matched(predictions, [1]) == {"w": 1}


def test_a_refused_choice_leaves_nothing_behind() -> None:
    predictions = make(10)
    first, second = promise(1, [1, 2, 3]), promise(2, [1, 2, 4])
    predictions.note(first)
    predictions.note(second)
    predictions.withdraw(first)
    assert matched(predictions, [1, 2, 3]) == {"w": 2}
    predictions.withdraw(second)
    assert matched(predictions, [1]) == {}
    assert predictions.load_of("w") == PromisedLoad()


def test_a_promise_that_nothing_confirms_ends_by_itself() -> None:
    predictions = make(10)
    predictions.note(promise(1, [1]))
    predictions.settle("w", {}, nothing_stored, TTL_S + 1)
    assert len(predictions) == 0
    assert predictions.load_of("w") == PromisedLoad()


def test_the_oldest_promise_makes_room_for_the_newest() -> None:
    predictions = make(3)
    for number in range(100):
        predictions.note(promise(number, [number]))
    assert len(predictions) == 3
    assert predictions.load_of("w") == PromisedLoad(3, 48)
    assert matched(predictions, [96]) == {}
    assert matched(predictions, [99]) == {"w": 1}


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(
    lambda path: [hash(tuple(path[: depth + 1])) for depth in range(len(path))]
)


@given(st.lists(st.tuples(st.sampled_from("nnnws"), prompts), max_size=20), prompts)
def test_promised_prefixes_are_what_a_naive_twin_says(
    history: list[tuple[str, list[int]]], asked: list[int]
) -> None:
    predictions = make(100)
    made: list[Promise] = []
    for number, (verb, keys) in enumerate(history):
        if verb == "n" or not made:
            made.append(promise(number, keys))
            predictions.note(made[-1])
        elif verb == "w":
            predictions.withdraw(made.pop(0))
        else:
            num_taken = len(made) // 2 + 1
            predictions.settle("w", {"r": made[num_taken - 1].number}, everything_stored, 1.0)
            made = made[num_taken:]
    wanted = as_keys(asked).tolist()
    depths = [
        sum(mine == theirs for mine, theirs in zip(one.keys.tolist(), wanted, strict=False)) for one in made
    ]
    best = max(depths, default=0)
    assert matched(predictions, asked) == ({"w": best} if best else {})
    assert predictions.load_of("w") == PromisedLoad(len(made), 16 * len(made))
