"""Where requests wait while every worker is full: bounded, by priority, then by when each is due.

A request is due at its deadline, or once it has waited the longest that anybody shall: so urgent deadlines go
first, and those with time to spare are not overtaken for ever.
"""

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from proto.errors import Overloaded
from router.line_pace import LinePace

Item = TypeVar("Item")

LONGEST_RETRY_S = 30.0


class Wish(msgspec.Struct, frozen=True):
    """What somebody asks who would wait. The lowest priority goes first, as in the engine.

    Units: `arrived_s`, `until_s` on this process's clock.
    """

    priority: int
    arrived_s: float
    until_s: float


class _Ticket(msgspec.Struct, Generic[Item], frozen=True):
    rank: tuple[int, float, int]
    until_s: float
    item: Item

    @property
    def priority(self) -> int:
        return self.rank[0]


class WaitingRoom(Generic[Item]):
    """One line a model. Belongs to one event loop. Units: `longest_s` seconds in line that are accepted."""

    def __init__(self, limit: int, longest_s: float) -> None:
        self._limit = limit
        self._longest_s = longest_s
        self._line: list[_Ticket[Item]] = []
        self._number = 0
        self._pace = LinePace()

    def __len__(self) -> int:
        return len(self._line)

    def expect(self, wish: Wish, now_s: float, seat_s: float) -> float:
        """The wait of somebody who came now, when a seat is thought to come free every `seat_s`.

        Raises:
            Overloaded: the line is full of who goes before, or the wait would be too long.
        """
        place = bisect_right(self._line, self._rank(wish), key=lambda one: one.rank)
        wait_s = self._pace.seat_s(seat_s) * (1 + place)
        retry_after_s = min(LONGEST_RETRY_S, max(1.0, wait_s))
        if len(self._line) >= self._limit and not self._has_lesser(wish):
            raise Overloaded(reason="the router's queue is full", retry_after_s=retry_after_s)
        if wait_s > min(self._longest_s, wish.until_s - now_s):
            raise Overloaded(reason="it would not be served in time", retry_after_s=retry_after_s)
        return wait_s

    def put(self, item: Item, wish: Wish, now_s: float) -> Item | None:
        """Lets `item` wait until `until_s`, asked for by `expect` or back again; who has to leave for it."""
        self._pace.note(now_s, num_waiting=len(self._line), num_left=0)
        self._number += 1
        insort(self._line, _Ticket(self._rank(wish), wish.until_s, item), key=lambda one: one.rank)
        return self._line.pop().item if len(self._line) > self._limit else None

    def take_where(self, is_wanted: Callable[[Item], bool]) -> list[Item]:
        """Takes out, in order, all that `is_wanted` says yes to; it is asked once for each."""
        return self._take(lambda ticket: is_wanted(ticket.item))

    def note_seat(self, now_s: float) -> None:
        """One that was taken out has got a seat."""
        self._pace.note(now_s, num_waiting=len(self._line) + 1, num_left=1)

    def take_expired(self, now_s: float) -> list[Item]:
        return self._take(lambda ticket: ticket.until_s <= now_s)

    def next_expiry_s(self) -> float | None:
        return min((ticket.until_s for ticket in self._line), default=None)

    def _take(self, is_wanted: Callable[[_Ticket[Item]], bool]) -> list[Item]:
        taken: list[_Ticket[Item]] = []
        left: list[_Ticket[Item]] = []
        for ticket in self._line:
            (taken if is_wanted(ticket) else left).append(ticket)
        self._line = left
        return [ticket.item for ticket in taken]

    def _rank(self, wish: Wish) -> tuple[int, float, int]:
        due_s = min(wish.until_s, wish.arrived_s + self._longest_s)
        return (wish.priority, due_s, self._number + 1)

    def _has_lesser(self, wish: Wish) -> bool:
        """Whether the last in line is of a priority that has to make room for this one."""
        return bool(self._line) and self._line[-1].priority > wish.priority
