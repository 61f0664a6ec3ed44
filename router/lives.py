"""Which incarnation of each worker is the present one.

Incarnations have no order of their own; the one met last is the present one, and one that was followed by
another never comes back, so that the late words of a process that was stopped and replaced count for nothing.
"""

from collections import deque

PAST_LIVES = 16  # a worker's past incarnations that are remembered, each for late words only


class Lives:
    """The present life of every worker, and its last past ones."""

    def __init__(self) -> None:
        self.num_changes = 0  # whoever keeps what he made of the present lives can see that they are others
        self._present: dict[str, str] = {}
        self._past: dict[str, deque[str]] = {}

    def present(self, worker: str) -> str | None:
        return self._present.get(worker)

    def is_new(self, worker: str, incarnation: str) -> bool:
        """Whether this is a life that was not met before."""
        return self._present.get(worker) != incarnation and incarnation not in self._past.get(worker, ())

    def begin(self, worker: str, incarnation: str) -> None:
        """From now on this is the present life; the one before is past."""
        self.num_changes += 1
        before = self._present.get(worker)
        if before is not None:
            self._past.setdefault(worker, deque(maxlen=PAST_LIVES)).append(before)
        self._present[worker] = incarnation

    def forget(self, worker: str) -> None:
        """The worker is gone for good."""
        self.num_changes += 1
        self._present.pop(worker, None)
        self._past.pop(worker, None)
