"""Where requests wait while every worker is full: bounded, by priority, then by deadline."""

from bisect import insort
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from proto.errors import Overloaded

Item = TypeVar("Item")

LONGEST_RETRY_S = 30.0


class _Ticket(msgspec.Struct, Generic[Item], frozen=True):
    """The lowest priority goes first, as in the engine. Units: `until_s` on this process's clock."""

    priority: int
    until_s: float
    number: int
    item: Item

    @property
    def rank(self) -> tuple[int, float, int]:
        return (self.priority, self.until_s, self.number)


class WaitingRoom(Generic[Item]):
    """One line a model. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line: list[_Ticket[Item]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._line)

    def put(self, item: Item, *, priority: int, now_s: float, until_s: float, seat_s: float) -> float:
        """Lets `item` wait until `until_s`; the wait that is expected, when a seat comes free every `seat_s`.

        Raises:
            Overloaded: the line is full, or it would not be served in time.
        """
        self._number += 1
        ticket = _Ticket(priority, until_s, self._number, item)
        wait_s = seat_s * (1 + sum(other.rank < ticket.rank for other in self._line))
        retry_after_s = min(LONGEST_RETRY_S, max(1.0, wait_s))
        if len(self._line) >= self._limit:
            raise Overloaded(reason="the router's queue is full", retry_after_s=retry_after_s)
        if now_s + wait_s > until_s:
            raise Overloaded(reason="it would not be served in time", retry_after_s=retry_after_s)
        insort(self._line, ticket, key=lambda one: one.rank)
        return wait_s

    def take_where(self, is_wanted: Callable[[Item], bool]) -> list[Item]:
        """Takes out, in order, all that `is_wanted` says yes to; it is asked once for each."""
        taken: list[_Ticket[Item]] = []
        left: list[_Ticket[Item]] = []
        for ticket in self._line:
            (taken if is_wanted(ticket.item) else left).append(ticket)
        self._line = left
        return [ticket.item for ticket in taken]

    def take_expired(self, now_s: float) -> list[Item]:
        expired = [ticket.item for ticket in self._line if ticket.until_s <= now_s]
        self._line = [ticket for ticket in self._line if ticket.until_s > now_s]
        return expired

    def next_expiry_s(self) -> float | None:
        return min((ticket.until_s for ticket in self._line), default=None)
