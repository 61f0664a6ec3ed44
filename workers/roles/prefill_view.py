"""Who could take a prefill job: the prefill workers of one model, by their reports.

```
 offered ─► asked directly: counts there ─► taken ─► a report includes it ─► ended: counts no more
                │ refused
                ▼
            in the queue: counts a share everywhere ─► somebody asks for the grant: counts no more
```
So jobs offered one right after the other do not all go where the last report saw nobody. One that failed a
job, as behind a cut link, is not asked again for a while, which doubles while it goes on failing: each
failure costs somebody a wait. One whose KV cannot come here is never asked.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from services.backoff import Backoff
from workers.roles.prefill_choice import There
from workers.roles.trips import Trips

AVOID_FIRST_S = 0.5
AVOID_MOST_S = 10.0


def _anybody(worker: str, incarnation: str) -> bool:
    return True


@dataclass(slots=True)
class _Offer:
    """A job of ours: with `worker`, as its `number`th once it has said so; or in the queue, with nobody.
    `is_included` in that worker's last report. Units: `at_s` seconds, when it was offered."""

    num_tokens: int
    at_s: float
    worker: str = ""
    number: int | None = None
    is_included: bool = False


class PrefillView:
    """Pure: fed with reports, losses, failures and offers, asked who could take a job.

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
        self._empty_listeners: list[Callable[[], None]] = []
        self._pauses: dict[str, Backoff] = {}
        self._avoided_until_s: dict[str, float] = {}
        self._offers: dict[str, _Offer] = {}
        self._ended_tokens: dict[str, int] = {}  # of jobs that the last report includes
        self._trips = Trips(now_s)

    def learn(self, report: LoadReport) -> None:
        if report.model != self._model:
            return
        known = self._reports.get(report.worker)
        if known is not None and known.incarnation != report.incarnation:
            self.lose(report.worker)
        if report.role is Role.PREFILL and report.state is WorkerState.READY:
            self._reports[report.worker] = report
            self._ended_tokens.pop(report.worker, None)
            self._note_included(report)
        else:
            self._drop(report.worker)

    def on_empty(self, listener: Callable[[], None]) -> None:
        """`listener()` when the last prefill worker has gone, or has another role."""
        self._empty_listeners.append(listener)

    def _drop(self, worker: str) -> None:
        if self._reports.pop(worker, None) is not None and not self._reports:
            for listener in self._empty_listeners:
                listener()

    def epoch_of(self, worker: str) -> int:
        """In which it prefills; 0 when it is not known any more."""
        report = self._reports.get(worker)
        return 0 if report is None else report.epoch

    def lose(self, worker: str) -> None:
        self._drop(worker)
        self._ended_tokens.pop(worker, None)
        self._trips.forget(worker)
        self.forgive(worker)
        for job in [job for job, offer in self._offers.items() if offer.worker == worker]:
            del self._offers[job]

    def avoid(self, worker: str) -> None:
        """A job with it has failed."""
        if worker in self._reports:
            pause = self._pauses.setdefault(worker, Backoff(AVOID_FIRST_S, AVOID_MOST_S))
            self._avoided_until_s[worker] = self._now_s() + pause.next_s()

    def forgive(self, worker: str) -> None:
        """Its KV has landed."""
        self._pauses.pop(worker, None)
        self._avoided_until_s.pop(worker, None)

    def note_asked(self, job: str, num_tokens: int, worker: str) -> None:
        """`worker` is asked to compute so many tokens."""
        self._offers[job] = _Offer(num_tokens, self._now_s(), worker)

    def note_taken(self, job: str, number: int) -> None:
        """It has taken it, as the job of this number; its reports say which they include."""
        offer = self._offers.get(job)
        if offer is None:
            return
        offer.number = number
        report = self._reports.get(offer.worker)
        if report is not None:
            self._note_included(report)

    def note_queued(self, job: str, num_tokens: int) -> None:
        """It waits in the queue, for whoever comes first."""
        self._offers[job] = _Offer(num_tokens, self._now_s())

    def note_granted(self, job: str) -> None:
        """Somebody has taken it out of the queue; one that was taken directly awaits the report, and tells
        how long its way took."""
        offer = self._offers.get(job)
        if offer is None:
            return
        if offer.worker:
            self._trips.note(offer.worker, self._now_s() - offer.at_s)
        else:
            del self._offers[job]

    def note_ended(self, job: str) -> None:
        """It is computed, or nobody will. The last report may still count it."""
        offer = self._offers.pop(job, None)
        if offer is not None and offer.is_included:
            ended_tokens = self._ended_tokens.get(offer.worker, 0)
            self._ended_tokens[offer.worker] = ended_tokens + offer.num_tokens

    @property
    def is_empty(self) -> bool:
        """Whether there is nobody who could take a job now."""
        return not self._candidates()

    def others(self, prefixes: Mapping[str, int]) -> list[There]:
        """Who could take a job now. Args: `prefixes`: tokens of its prompt at those that hold some."""
        candidates = self._candidates()
        asked, num_queued = self._offered()
        return [
            There(
                worker=report.worker,
                waiting_tokens=self._reported_tokens(report)
                + asked.get(report.worker, 0)
                + num_queued / len(candidates),
                prefill_rate=report.prefill_rate,
                bytes_per_s=report.push_bytes_per_s,
                prefix_tokens=prefixes.get(report.worker, 0),
                zone=report.zone,
                trip_s=self._trips.trip_s(report.worker),
            )
            for report in candidates
        ]

    def _reported_tokens(self, report: LoadReport) -> int:
        """As it said, but for what has ended since."""
        job_tokens = max(0, report.job_tokens - self._ended_tokens.get(report.worker, 0))
        return job_tokens + report.waiting_tokens

    def _offered(self) -> tuple[dict[str, int], int]:
        """Tokens that no report includes yet: with each worker, and in the queue."""
        asked: dict[str, int] = {}
        for offer in self._offers.values():
            if not offer.is_included:
                asked[offer.worker] = asked.get(offer.worker, 0) + offer.num_tokens
        return asked, asked.pop("", 0)

    def _note_included(self, report: LoadReport) -> None:
        for offer in self._offers.values():
            if offer.worker == report.worker and offer.number is not None:
                offer.is_included = offer.number <= report.jobs_taken

    def _candidates(self) -> list[LoadReport]:
        now_s = self._now_s()
        return [
            report
            for report in self._reports.values()
            if self._avoided_until_s.get(report.worker, 0.0) <= now_s
            and self._can_move(report.worker, report.incarnation)
        ]
