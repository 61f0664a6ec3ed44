"""How long a job's way to a prefill worker takes beside the work: assumed at first, then measured.

```
 choice ─► ask ─► taken, met ─► grant asked for ┆ ─► granted ─► … the work … ─► landing notice ─► landed
 ├───────────────── measured ───────────────────┤    └─ taken to be as long as what was measured ─┘
```
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

ASSUMED_TRIP_S = 0.003
DECAY = 0.8
"""What the past still weighs after one more job, and at first the assumption: the first job of two workers
waits until they have met."""
FORGET_S = 30.0
"""After so long without a job the assumption holds again: a bad moment must not keep jobs away for ever."""


@dataclass(slots=True)
class _Measure:
    mean_s: float
    at_s: float


class Trips:
    """By prefill worker. Pure, but for the clock."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._measures: dict[str, _Measure] = {}

    def note(self, worker: str, until_grant_s: float) -> None:
        """From the choice of `worker` it took so long until it asked for the grant."""
        mean_s = DECAY * self.trip_s(worker) / 2 + (1 - DECAY) * until_grant_s
        self._measures[worker] = _Measure(mean_s, self._now_s())

    def forget(self, worker: str) -> None:
        self._measures.pop(worker, None)

    def trip_s(self, worker: str) -> float:
        """There and back."""
        known = self._measures.get(worker)
        if known is None or self._now_s() - known.at_s > FORGET_S:
            return ASSUMED_TRIP_S
        return 2 * known.mean_s
