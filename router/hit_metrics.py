"""Promised hits against real ones: what choices promised of workers' caches, and what these then gave.

Both are counted when a worker's report first includes a choice, so that they are of the same requests, for
the choices of all routers. Per worker they are held against each other in windows: one that has lasted
`WINDOW_S` and has seen `WINDOW_TOKENS` of either is over, and raises the alarm when the two differ by more
than `PARTED_SHARE` of the larger. Then the index is not what the cache is, or the hashes are not the same.
"""

import logging

from proto.reports import LoadReport
from proto.requests import Decision
from proto.roles import Role
from services.metrics import Metrics, RouterMetrics

WINDOW_S = 10.0
WINDOW_TOKENS = 16_384
PARTED_SHARE = 0.25
MAX_PROMISES = 4096  # of one worker, not included in a report yet; beyond, the oldest are not counted

log = logging.getLogger(__name__)


class _Account:
    """One life of one worker, from a report on. Units: tokens; `began_s` on the caller's clock."""

    def __init__(self, hit_tokens: int, now_s: float) -> None:
        self.hit_tokens = hit_tokens
        self.began_s = now_s
        self.promised = 0
        self.real = 0

    @property
    def has_parted(self) -> bool:
        return abs(self.promised - self.real) > PARTED_SHARE * max(self.promised, self.real)

    def is_over(self, now_s: float) -> bool:
        return now_s - self.began_s >= WINDOW_S and max(self.promised, self.real) >= WINDOW_TOKENS


class HitMetrics:
    """Counts over all workers, and an account of each."""

    def __init__(self, metrics: Metrics, router: RouterMetrics) -> None:
        self._router = router
        self._promised = metrics.counter(
            "route_promised_hit_tokens_total",
            "prompt tokens that routers promised cached on the chosen worker, once its report includes them",
        )
        self._real = metrics.counter(
            "route_real_hit_tokens_total", "prompt tokens that workers report to have found cached"
        )
        self._alarms = metrics.counter(
            "route_hit_alarms_total", "windows in which promised and real hits of a worker have parted"
        )
        self._promises: dict[str, dict[tuple[str, int], int]] = {}
        self._accounts: dict[str, _Account] = {}

    def begin_life(self, worker: str) -> None:
        """The worker's own counters begin anew, or are not known."""
        self._accounts.pop(worker, None)
        self._promises.pop(worker, None)

    def promise(self, decision: Decision) -> None:
        promises = self._promises.setdefault(decision.worker, {})
        promises[decision.router, decision.number] = decision.prefix_tokens
        if len(promises) > MAX_PROMISES:
            del promises[next(iter(promises))]

    def withdraw(self, worker: str, router: str, number: int) -> None:
        """The worker did not take it."""
        self._promises.get(worker, {}).pop((router, number), None)

    def count_events(self, num_events: int) -> None:
        self._router.events.inc(num_events)

    def report(self, report: LoadReport, now_s: float) -> None:
        """Takes what was promised and found since the worker's last report; its first only sets the mark.

        Hits of jobs are nobody's promise, so a worker that prefills has no account.
        """
        promised = self._take_included(report)
        account = self._accounts.get(report.worker)
        if report.role is not Role.DECODE:
            self._accounts.pop(report.worker, None)
        elif account is None:
            self._accounts[report.worker] = _Account(report.hit_tokens, now_s)
        else:
            self._count(account, promised, report, now_s)

    def _take_included(self, report: LoadReport) -> int:
        promises, included = self._promises.get(report.worker, {}), report.decisions
        kept = [one for one in promises if one[1] <= included.get(one[0], -1)]
        return sum(promises.pop(one) for one in kept)

    def _count(self, account: _Account, promised: int, report: LoadReport, now_s: float) -> None:
        real = max(0, report.hit_tokens - account.hit_tokens)
        account.hit_tokens = report.hit_tokens
        account.promised += promised
        account.real += real
        self._promised.inc(promised)
        self._real.inc(real)
        if account.is_over(now_s):
            self._judge(account, report.worker)
            self._accounts[report.worker] = _Account(report.hit_tokens, now_s)

    def _judge(self, account: _Account, worker: str) -> None:
        if account.has_parted:
            self._alarms.inc()
            fields = {"worker": worker, "promised": account.promised, "real": account.real}
            log.warning("promised and real hits of a worker have parted", extra=fields)
