"""Cancels of requests that have not come yet, remembered for a while: one may overtake the other."""

import time
from collections import OrderedDict

MAX_EARLY_CANCELS = 10_000


class EarlyCancels:
    """Args: `keep_s`: seconds that each is remembered; the oldest goes first when there are too many."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._by_request: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def note(self, request: str, attempt: int) -> None:
        """This attempt, and every earlier one, is not wanted."""
        now_s = time.monotonic()
        known, _ = self._by_request.pop(request, (-1, 0.0))
        self._by_request[request] = (max(known, attempt), now_s + self._keep_s)
        while len(self._by_request) > MAX_EARLY_CANCELS or self._oldest_s() < now_s:
            self._by_request.popitem(last=False)

    def has(self, request: str, attempt: int) -> bool:
        cancelled, until_s = self._by_request.get(request, (-1, 0.0))
        return attempt <= cancelled and time.monotonic() < until_s

    def _oldest_s(self) -> float:
        return next(iter(self._by_request.values()))[1]
