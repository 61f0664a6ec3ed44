"""Who could take a prefill job: the prefill workers of one model, by their reports."""

import random

from proto.reports import LoadReport
from proto.roles import Role, WorkerState

# Until a worker has measured its own rate it is taken for one of this many tokens a second.
UNMEASURED_RATE = 1000.0


class PrefillView:
    """Pure: fed with reports and losses, asked for the best worker."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._reports: dict[str, LoadReport] = {}

    def learn(self, report: LoadReport) -> None:
        if report.model != self._model:
            return
        if report.role is Role.PREFILL and report.state is WorkerState.READY:
            self._reports[report.worker] = report
        else:
            self._reports.pop(report.worker, None)

    def lose(self, worker: str) -> None:
        self._reports.pop(worker, None)

    @property
    def is_empty(self) -> bool:
        return not self._reports

    def choose(self) -> LoadReport | None:
        """The worker that would begin a new job first; ties at random."""
        if not self._reports:
            return None
        return min(self._reports.values(), key=lambda report: (_wait_s(report), random.random()))

    def wait_s(self) -> float:
        """Seconds that a new job would wait before its compute, at the best worker."""
        return min((_wait_s(report) for report in self._reports.values()), default=float("inf"))


def _wait_s(report: LoadReport) -> float:
    return (report.job_tokens + report.waiting_tokens) / (report.prefill_rate or UNMEASURED_RATE)
