"""Watches this process's own event loop: was it late, so that what it had buffered is stale?

A stopped process (SIGSTOP, a paused container, a long hold of the GIL) wakes with old messages in its socket
and queues. Which callback runs first after the wake-up is chance, so lateness is found by whoever asks first:
the tick, or the next delivery, both through `check`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

TICK_S = 0.25


class LoopWatch:
    """Counts the terms of a loop: each lateness begins a new one, and what is of an older term is stale."""

    def __init__(self, late_after_s: float) -> None:
        self.term = 0
        self._late_after_s = late_after_s
        self._ticked_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """`listener` is called at each lateness; it must not block or raise. The result takes it off."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def check(self) -> int:
        """The term that holds now; begins a new one if the loop was late. Cheap enough for every message."""
        late_s = time.monotonic() - self._ticked_s - TICK_S
        if late_s > self._late_after_s:
            self._begin_term(late_s)
        return self.term

    def _begin_term(self, late_s: float) -> None:
        self.term += 1
        self._ticked_s = time.monotonic()
        log.warning("the event loop was %.1f s late; what it had buffered is expired", late_s)
        for listener in list(self._listeners):
            listener()

    def start(self) -> None:
        """Ticks from now on, until `stop`."""
        self._ticked_s = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self.check()
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@contextmanager
def watch_loop(late_after_s: float) -> Iterator[LoopWatch]:
    """A watch over the running loop, for the time of the body."""
    watch = LoopWatch(late_after_s)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
