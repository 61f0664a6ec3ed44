"""Which incarnation of each worker is the present one.

Incarnations have no order of their own. The one met last is the present one, and one that was followed by
another is past, so that the late words of a process that was stopped and replaced count for nothing. But a
late word may also be the first that is met of its life: then a life that is past goes on reporting, while the
one that is present says nothing more. After `SILENT_S` of that it is the present one again.
"""

from collections import deque

PAST_LIVES = 16  # a worker's past incarnations that are remembered, each for late words only
SILENT_S = 2.0  # two beats


class Lives:
    """The present life of every worker, and its last past ones."""

    def __init__(self) -> None:
        self.num_changes = 0  # whoever keeps what he made of the present lives can see that they are others
        self._present: dict[str, str] = {}
        self._past: dict[str, deque[str]] = {}
        self._heard_s: dict[str, float] = {}

    def present(self, worker: str) -> str | None:
        return self._present.get(worker)

    def is_new(self, worker: str, incarnation: str) -> bool:
        """Whether this is a life that was not met before."""
        return self._present.get(worker) != incarnation and incarnation not in self._past.get(worker, ())

    def is_back(self, worker: str, incarnation: str, now_s: float) -> bool:
        """Whether this past life, which reports now, is the one that goes on."""
        is_past = incarnation in self._past.get(worker, ())
        return is_past and now_s - self._heard_s.get(worker, now_s) >= SILENT_S

    def note_report(self, worker: str, now_s: float) -> None:
        """The present life has reported."""
        self._heard_s[worker] = now_s

    def begin(self, worker: str, incarnation: str, now_s: float) -> None:
        """From now on this is the present life; the one before is past."""
        self.num_changes += 1
        self._heard_s[worker] = now_s
        before = self._present.get(worker)
        if before is not None:
            self._past.setdefault(worker, deque(maxlen=PAST_LIVES)).append(before)
        past = self._past.get(worker)
        if past is not None and incarnation in past:
            past.remove(incarnation)
        self._present[worker] = incarnation

    def forget(self, worker: str) -> None:
        """The worker is gone for good."""
        self.num_changes += 1
        self._present.pop(worker, None)
        self._past.pop(worker, None)
        self._heard_s.pop(worker, None)
