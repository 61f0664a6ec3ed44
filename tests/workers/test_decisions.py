"""Reports include the decisions of each router up to those whose requests are being read."""

from proto.requests import Decision
from workers.decisions import Decisions


def decision_of(router: str, number: int) -> Decision:
    return Decision(router, number, "w", 0, 0)


def test_the_last_of_each_router_is_included_whatever_their_order() -> None:
    decisions = Decisions()
    for router, number in (("a", 3), ("b", 1), ("a", 2)):
        decisions.note(decision_of(router, number))
    assert decisions.included() == {"a": 3, "b": 1}


def test_one_that_is_held_open_is_not_included_nor_is_any_after_it() -> None:
    decisions = Decisions()
    decisions.note(decision_of("b", 1))
    decisions.note(decision_of("a", 7))
    with decisions.holding_open(decision_of("a", 7)):
        decisions.note(decision_of("a", 8))
        assert decisions.included() == {"a": 6, "b": 1}
    assert decisions.included() == {"a": 8, "b": 1}


def test_one_that_came_twice_stays_open_until_both_are_through() -> None:
    decisions, decision = Decisions(), decision_of("a", 7)
    decisions.note(decision)
    with decisions.holding_open(decision):
        with decisions.holding_open(decision):
            pass
        assert decisions.included() == {"a": 6}
    assert decisions.included() == {"a": 7}
