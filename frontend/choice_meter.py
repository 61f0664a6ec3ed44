"""When the tokens of one choice came, told to the metrics and to the count of traffic."""

import time

from frontend.traffic import RequestAccount
from services.metrics import FrontendMetrics


class ChoiceMeter:
    """One choice's. Units: seconds; `arrived_s`, when the request came, on the monotonic clock."""

    def __init__(self, arrived_s: float, metrics: FrontendMetrics, account: RequestAccount) -> None:
        self._arrived_s = arrived_s
        self._metrics = metrics
        self._account = account
        self._first_s = self._last_s = 0.0

    @property
    def ttft_s(self) -> float:
        """0: no token has come."""
        return round(self._first_s - self._arrived_s, 6) if self._first_s else 0.0

    @property
    def total_s(self) -> float:
        """Up to the last token; 0: none has come."""
        return round(self._last_s - self._arrived_s, 6) if self._last_s else 0.0

    def note(self, num_new: int, num_cached: int) -> None:
        """So many tokens more have come, of a prompt of which so many were cached."""
        now_s = time.monotonic()
        if not self._first_s:
            self._first_s = now_s
            self._metrics.ttft_s.observe(now_s - self._arrived_s)
            self._account.note_first(now_s - self._arrived_s, num_new, num_cached)
        else:
            gap_s = (now_s - self._last_s) / num_new
            self._metrics.itl_s.observe(gap_s, num_new)
            self._account.note_next(gap_s, num_new)
        self._last_s = now_s
        self._metrics.tokens_out.inc(num_new)

    def end(self, num_cached: int) -> None:
        """No more will come. More than once is once."""
        self._account.end(num_cached)
