"""A worker for which an hour passes in a moment, at a signal: all that it has on the monotonic clock ages."""

import os
import signal
import time
from types import FrameType

HOUR_S = 3600.0


class SleptClock:
    """The monotonic clock, and what was slept beyond."""

    def __init__(self) -> None:
        self._real_s = time.monotonic
        self._slept_s = 0.0

    def now_s(self) -> float:
        return self._real_s() + self._slept_s

    def sleep(self, number: int, frame: FrameType | None) -> None:
        self._slept_s += HOUR_S


def heed_hours() -> None:
    """In a process that is to become a worker. Mutates: its clock."""
    clock = SleptClock()
    time.monotonic = clock.now_s
    signal.signal(signal.SIGUSR2, clock.sleep)


def let_an_hour_pass(pid: int) -> None:
    os.kill(pid, signal.SIGUSR2)
