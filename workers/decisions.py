"""Which decisions of routers a worker's reports include."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from proto.requests import Decision


class Decisions:
    """Belongs to the event loop. By router, whose decisions are numbered."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._open: Counter[tuple[str, int]] = Counter()

    def note(self, decision: Decision) -> None:
        """It is in the next report, taken or not."""
        self._last[decision.router] = max(decision.number, self._last.get(decision.router, 0))

    @contextmanager
    def holding_open(self, decision: Decision) -> Iterator[None]:
        """It has come, but neither load nor cache include it in the body."""
        which = (decision.router, decision.number)
        self._open[which] += 1
        try:
            yield
        finally:
            self._open[which] -= 1
            if not self._open[which]:
                del self._open[which]

    def included(self) -> dict[str, int]:
        """The last of each router up to which load and cache include all."""
        told = dict(self._last)
        for router, number in self._open:
            told[router] = min(told[router], number - 1)
        return told
