"""The line: bounded, by priority, then by deadline; its pace is measured."""

import pytest

from proto.errors import Overloaded
from router.line_pace import LinePace
from router.waiting_room import WaitingRoom, Wish


def make_room(limit: int = 10, longest_s: float = 1000.0) -> WaitingRoom[str]:
    return WaitingRoom(limit, longest_s)


def fill(room: WaitingRoom[str], *items: tuple[str, int, float]) -> None:
    for item, priority, until_s in items:
        room.put(item, Wish(priority, 0.0, until_s), 0.0)


def take_all(room: WaitingRoom[str]) -> list[str]:
    return room.take_where(lambda _: True)


def test_the_lowest_priority_goes_first_then_the_deadline_then_who_came_first() -> None:
    room = make_room()
    fill(room, ("late", 0, 20.0), ("soon", 0, 10.0), ("soon too", 0, 10.0), ("urgent", -5, 99.0))
    assert take_all(room) == ["urgent", "soon", "soon too", "late"]
    assert len(room) == 0


def test_who_has_time_to_spare_is_not_overtaken_for_ever() -> None:
    room = make_room(longest_s=5.0)
    room.put("patient", Wish(0, 0.0, 600.0), 0.0)
    for now_s in (1.0, 2.0, 3.0):
        room.put(f"came at {now_s}", Wish(0, now_s, now_s + 30.0), now_s)
    room.put("urgent", Wish(0, 4.0, 4.5), 4.0)
    assert take_all(room)[:2] == ["urgent", "patient"]


def test_only_those_that_are_wanted_leave_the_line() -> None:
    room = make_room()
    fill(room, ("a", 0, 1.0), ("b", 0, 2.0), ("c", 0, 3.0))
    assert room.take_where(lambda item: item != "b") == ["a", "c"]
    assert take_all(room) == ["b"]


def test_a_full_line_refuses_and_says_when_to_come_again() -> None:
    room = make_room(limit=1)
    fill(room, ("a", 0, 99.0))
    with pytest.raises(Overloaded) as refusal:
        room.expect(Wish(0, 0.0, 99.0), 0.0, seat_s=2.0)
    assert refusal.value.values == {"reason": "the router's queue is full", "retry_after_s": 4.0}


def test_in_a_full_line_the_last_of_a_lower_priority_makes_room() -> None:
    room = make_room(limit=2)
    fill(room, ("first", 0, 9.0), ("last", 0, 99.0))
    urgent = Wish(-1, 0.0, 99.0)
    assert room.expect(urgent, 0.0, seat_s=2.0) == 2.0
    assert room.put("urgent", urgent, 0.0) == "last"
    assert take_all(room) == ["urgent", "first"]


def test_who_would_not_be_served_in_time_is_refused_at_once() -> None:
    room = make_room()
    fill(room, ("a", 0, 59.0))
    with pytest.raises(Overloaded, match="in time"):
        room.expect(Wish(0, 50.0, 59.5), 50.0, seat_s=5.0)
    assert room.expect(Wish(-1, 50.0, 59.5), 50.0, seat_s=5.0) == 5.0


def test_nobody_waits_longer_than_the_longest_wait_whatever_his_deadline() -> None:
    room = make_room(longest_s=6.0)
    patient = Wish(0, 0.0, 9999.0)
    assert room.expect(patient, 0.0, seat_s=5.0) == 5.0
    room.put("a", patient, 0.0)
    with pytest.raises(Overloaded, match="in time"):
        room.expect(patient, 0.0, seat_s=5.0)


def test_only_who_got_a_seat_makes_the_line_quicker() -> None:
    room = make_room()
    wish = Wish(0, 0.0, 9999.0)
    for turn in range(100):
        room.put("sent, refused, and back in line", wish, turn * 0.1)
        take_all(room)
    assert room.expect(wish, 10.0, seat_s=5.0) == pytest.approx(5.0)
    for turn in range(100, 200):
        room.note_seat(turn * 0.1)
    assert room.expect(wish, 20.0, seat_s=5.0) < 0.5


def test_the_expired_are_taken_out() -> None:
    room = make_room()
    fill(room, ("a", 0, 1.0), ("b", 0, 5.0), ("c", 9, 2.0))
    assert room.next_expiry_s() == 1.0
    assert set(room.take_expired(2.0)) == {"a", "c"}
    assert room.next_expiry_s() == 5.0


def test_the_pace_of_a_line_is_measured_while_somebody_waits() -> None:
    pace = LinePace()
    assert pace.seat_s(0.5) == 0.5
    for turn in range(1, 200):
        pace.note(turn * 0.1, num_waiting=3, num_left=1)
    assert pace.seat_s(0.5) == pytest.approx(0.1, rel=0.2)
    for turn in range(200, 400):
        pace.note(turn * 0.1, num_waiting=3, num_left=turn % 5 == 0)
    assert pace.seat_s(0.1) == pytest.approx(0.5, rel=0.25)


def test_time_without_anybody_in_line_says_nothing_of_its_pace() -> None:
    pace = LinePace()
    for turn in range(100):
        pace.note(turn * 0.1, num_waiting=1, num_left=1)
    before_s = pace.seat_s(0.1)
    pace.note(11.0, num_waiting=0, num_left=0)
    assert pace.seat_s(0.1) == pytest.approx(before_s, rel=0.1)
    pace.note(1000.0, num_waiting=0, num_left=0)
    assert pace.seat_s(7.0) == pytest.approx(7.0)
