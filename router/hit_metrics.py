"""Promised hits against real ones: what choices promised of workers' caches, and what these then gave."""

from proto.reports import LoadReport
from services.metrics import Metrics, RouterMetrics


class HitMetrics:
    """Counts over all workers, for the choices of all routers, so that the two can be compared."""

    def __init__(self, metrics: Metrics, router: RouterMetrics) -> None:
        self._router = router
        self._promised = metrics.counter(
            "route_promised_hit_tokens_total",
            "prompt tokens that routers promised cached on the chosen worker",
        )
        self._real = metrics.counter(
            "route_real_hit_tokens_total", "prompt tokens that workers report to have found cached"
        )
        self._last: dict[str, int] = {}

    def begin_life(self, worker: str) -> None:
        """The worker's own counters begin anew, or are not known."""
        self._last.pop(worker, None)

    def promise(self, hit_tokens: int) -> None:
        self._promised.inc(hit_tokens)

    def count_events(self, num_events: int) -> None:
        self._router.events.inc(num_events)

    def report(self, report: LoadReport) -> None:
        """Takes what was found since the worker's last report; its first one only sets the mark."""
        before = self._last.get(report.worker, report.hit_tokens)
        self._last[report.worker] = report.hit_tokens
        self._real.inc(max(0, report.hit_tokens - before))
