"""The line: bounded, by priority, then by deadline."""

import pytest

from proto.errors import Overloaded
from router.waiting_room import WaitingRoom


def fill(room: WaitingRoom[str], *items: tuple[str, int, float]) -> None:
    for item, priority, until_s in items:
        room.put(item, priority=priority, now_s=0.0, until_s=until_s, seat_s=0.001)


def test_the_lowest_priority_goes_first_then_the_deadline_then_who_came_first() -> None:
    room: WaitingRoom[str] = WaitingRoom(10)
    fill(room, ("late", 0, 20.0), ("soon", 0, 10.0), ("soon too", 0, 10.0), ("urgent", -5, 99.0))
    assert room.take_where(lambda _: True) == ["urgent", "soon", "soon too", "late"]
    assert len(room) == 0


def test_only_those_that_are_wanted_leave_the_line() -> None:
    room: WaitingRoom[str] = WaitingRoom(10)
    fill(room, ("a", 0, 1.0), ("b", 0, 2.0), ("c", 0, 3.0))
    assert room.take_where(lambda item: item != "b") == ["a", "c"]
    assert room.take_where(lambda _: True) == ["b"]


def test_a_full_line_refuses_and_says_when_to_come_again() -> None:
    room: WaitingRoom[str] = WaitingRoom(1)
    room.put("a", priority=0, now_s=0.0, until_s=99.0, seat_s=2.0)
    with pytest.raises(Overloaded) as refusal:
        room.put("b", priority=-9, now_s=0.0, until_s=99.0, seat_s=2.0)
    assert refusal.value.values == {"reason": "the router's queue is full", "retry_after_s": 2.0}


def test_who_would_not_be_served_in_time_is_refused_at_once() -> None:
    room: WaitingRoom[str] = WaitingRoom(10)
    assert room.put("a", priority=0, now_s=50.0, until_s=59.0, seat_s=5.0) == 5.0
    with pytest.raises(Overloaded, match="in time"):
        room.put("b", priority=0, now_s=50.0, until_s=59.5, seat_s=5.0)
    assert room.put("c", priority=-1, now_s=50.0, until_s=59.0, seat_s=5.0) == 5.0


def test_the_expired_are_taken_out() -> None:
    room: WaitingRoom[str] = WaitingRoom(10)
    fill(room, ("a", 0, 1.0), ("b", 0, 5.0), ("c", 9, 2.0))
    assert room.next_expiry_s() == 1.0
    assert set(room.take_expired(2.0)) == {"a", "c"}
    assert room.next_expiry_s() == 5.0
