"""How fast a line moves: measured while somebody stands in it, and believed to be as guessed before that.

Measured is what this router's own line sees, so that routers that share workers need not know one another's.
"""

from math import exp

MEMORY_S = 5.0  # what lies this far back counts a third
GUESS_SEATS = 2.0  # the guess counts as much as this many seats that were seen


class LinePace:
    """Seats that came free over time in which somebody waited, the older the less. Knows no clock."""

    def __init__(self) -> None:
        self._num_seats = 0.0
        self._waited_s = 0.0
        self._noted_s = 0.0

    def note(self, now_s: float, *, num_waiting: int, num_left: int) -> None:
        """Since the last note `num_waiting` stood in line, and `num_left` of them now leave it for a seat."""
        passed_s, self._noted_s = now_s - self._noted_s, now_s
        kept = exp(-passed_s / MEMORY_S)
        self._num_seats *= kept
        self._waited_s *= kept
        if num_waiting:
            self._num_seats += num_left
            self._waited_s += passed_s

    def seat_s(self, guess_s: float) -> float:
        """Seconds between two seats that come free."""
        return (self._waited_s + GUESS_SEATS * guess_s) / (self._num_seats + GUESS_SEATS)
