"""Who could take a prefill job: the prefill workers of one model, by their reports.

One that failed a job, as behind a cut link, is not asked again for a while, which doubles while it goes on
failing: each failure costs somebody a wait. One whose KV cannot come here is never asked.
"""

import random
import time
from collections.abc import Callable

from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from services.backoff import Backoff

# Until a worker has measured its own rate it is taken for one of this many tokens a second.
UNMEASURED_RATE = 1000.0
AVOID_FIRST_S = 0.5
AVOID_MOST_S = 10.0


def _anybody(worker: str, incarnation: str) -> bool:
    return True


class PrefillView:
    """Pure: fed with reports, losses and failures, asked for the best worker.

    Args: `can_move(worker, incarnation)`: whether its KV can come here at all.
    """

    def __init__(
        self,
        model: str,
        can_move: Callable[[str, str], bool] = _anybody,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._can_move = can_move
        self._now_s = now_s
        self._reports: dict[str, LoadReport] = {}
        self._pauses: dict[str, Backoff] = {}
        self._avoided_until_s: dict[str, float] = {}

    def learn(self, report: LoadReport) -> None:
        if report.model != self._model:
            return
        known = self._reports.get(report.worker)
        if known is not None and known.incarnation != report.incarnation:
            self.lose(report.worker)
        if report.role is Role.PREFILL and report.state is WorkerState.READY:
            self._reports[report.worker] = report
        else:
            self._reports.pop(report.worker, None)

    def lose(self, worker: str) -> None:
        self._reports.pop(worker, None)
        self.forgive(worker)

    def avoid(self, worker: str) -> None:
        """A job with it has failed."""
        if worker in self._reports:
            pause = self._pauses.setdefault(worker, Backoff(AVOID_FIRST_S, AVOID_MOST_S))
            self._avoided_until_s[worker] = self._now_s() + pause.next_s()

    def forgive(self, worker: str) -> None:
        """Its KV has landed."""
        self._pauses.pop(worker, None)
        self._avoided_until_s.pop(worker, None)

    @property
    def is_empty(self) -> bool:
        return not self._candidates()

    def choose(self) -> LoadReport | None:
        """The worker that would begin a new job first; ties at random."""
        candidates = self._candidates()
        if not candidates:
            return None
        return min(candidates, key=lambda report: (_wait_s(report), random.random()))

    def wait_s(self) -> float:
        """Seconds that a new job would wait before its compute, at the best worker."""
        return min((_wait_s(report) for report in self._candidates()), default=float("inf"))

    def _candidates(self) -> list[LoadReport]:
        now_s = self._now_s()
        return [
            report
            for report in self._reports.values()
            if self._avoided_until_s.get(report.worker, 0.0) <= now_s
            and self._can_move(report.worker, report.incarnation)
        ]


def _wait_s(report: LoadReport) -> float:
    return (report.job_tokens + report.waiting_tokens) / (report.prefill_rate or UNMEASURED_RATE)
