"""Which prefill jobs this worker takes: asked directly, or fetched from the work queue."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from proto import subjects
from proto.codec import decode
from proto.errors import DeadlineExceeded, GoElsewhere, GrantRefused, InvalidRequest, KvmeshError, Unavailable
from proto.jobs import PrefillJob
from proto.names import check_id
from proto.roles import Role
from services.backoff import Backoff
from services.metrics import WorkerMetrics
from services.taker import Taker, open_taker
from services.tasks import open_tasks
from services.work_queue import Work, WorkQueue
from workers.roles.held_job import HeldJob, HolderTools

FETCH_S = 5.0
PROGRESS_S = 1.0

log = logging.getLogger(__name__)


class PrefillDesk:
    """Jobs in hand, each a task of `run`'s group; at most `max_jobs` that are not ending."""

    def __init__(
        self, ns: str, model: str, tools: HolderTools, queue: WorkQueue, max_jobs: int, metrics: WorkerMetrics
    ) -> None:
        self._subject = subjects.prefill(ns, model)
        self._model = model
        self._tools = tools
        self._queue = queue
        self._max_jobs = max_jobs
        self.num_taken = 0
        self._metrics = metrics
        self._jobs: dict[str, HeldJob] = {}
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._group: asyncio.TaskGroup | None = None

    @property
    def num_jobs(self) -> int:
        return len(self._jobs)

    @property
    def num_unscheduled_tokens(self) -> int:
        """Tokens of jobs in hand that are to be computed and are not the engine's yet."""
        return sum(job.num_unscheduled_tokens for job in self._jobs.values())

    def take(self, job: PrefillJob, epoch: int | None = None) -> int:
        """Take a job that was asked for directly; one in hand already is taken twice. Returns how many jobs
        were taken up to now, which reports count alike.

        Raises:
            GoElsewhere: no such work now, or as many jobs in hand as may be.
            InvalidRequest: its owner is no worker's name.
        """
        check_id(job.owner, "owner")
        self._tools.term.check_takes(Role.PREFILL, epoch)
        if job.job in self._jobs:
            return self.num_taken
        if job.model != self._model:
            raise GoElsewhere(worker=self._tools.term.worker, reason=f"its model is {self._model}")
        if self._group is None or not self._has_room():
            raise GoElsewhere(worker=self._tools.term.worker, reason="it has all the jobs it may have")
        self._start(self._group, job, None)
        return self.num_taken

    def cancel(self, job: str) -> None:
        """The owner wants it no more. Unknown jobs are nothing to end."""
        held = self._jobs.get(job)
        if held is not None:
            held.stop(GrantRefused(job=job, reason="its owner wants it no more"))

    def lose(self, owner: str) -> None:
        """A worker is lost: nothing is computed for it. It may come back, and has its prompts prefilled."""
        self._stop(lambda job: job.owner == owner, "its owner was lost")

    def give_back(self, reason: str) -> None:
        """All that is in hand: its owners prefill themselves."""
        self._stop(lambda _: True, reason)

    def _stop(self, is_meant: Callable[[PrefillJob], bool], reason: str) -> None:
        for held in self._jobs.values():
            if is_meant(held.job):
                held.stop(GoElsewhere(worker=self._tools.term.worker, reason=reason))

    async def run(self) -> None:
        """Work, and fetch more while this worker's role is to prefill. Cancel: ends every job."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await self._fetch_for_ever(group)
            finally:
                self._group = None

    def _note_served(self) -> None:
        term = self._tools.term
        term.num_served += 1
        self._metrics.note_served(term.role, term.epoch, "job")

    async def wait_idle(self) -> None:
        """Until no job is in hand."""
        while self._jobs:
            self._changed.clear()
            await self._changed.wait()

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called when a job has come or gone."""
        self._listeners.append(listener)

    def wake(self) -> None:
        """The term has changed, or the jobs in hand."""
        self._changed.set()
        for listener in self._listeners:
            listener()

    async def _fetch_for_ever(self, group: asyncio.TaskGroup) -> None:
        """A queue in trouble stops nobody from asking directly. Who decodes has no place at the queue."""
        backoff = Backoff(first_s=0.1, most_s=FETCH_S)
        while True:
            await self._wait_until(self._takes_jobs)
            try:
                async with open_taker(self._queue, self._subject) as taker:
                    await self._fetch_in_role(group, taker)
                backoff.reset()
            except KvmeshError as error:
                log.warning("no jobs can be fetched now", extra={"reason": str(error)})
                await asyncio.sleep(backoff.next_s())

    async def _fetch_in_role(self, group: asyncio.TaskGroup, taker: Taker) -> None:
        while self._takes_jobs():
            await self._fetch(group, taker)
            await self._wait_until(lambda: self._has_room() or not self._takes_jobs())

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def _takes_jobs(self) -> bool:
        try:
            self._tools.term.check_takes(Role.PREFILL)
        except GoElsewhere:
            return False
        return True

    def _has_room(self) -> bool:
        """One that is ending may wait for its stopped owner to wake, and costs nothing."""
        return sum(not job.is_ending for job in self._jobs.values()) < self._max_jobs

    async def _fetch(self, group: asyncio.TaskGroup, taker: Taker) -> None:
        work = await taker.fetch(FETCH_S)
        if work is None:
            return
        if not (self._takes_jobs() and self._has_room()):
            with suppress(Unavailable, DeadlineExceeded):
                await work.give_back()
            return
        job = _read_job(work)
        if job is None or _is_poison(work):
            with suppress(Unavailable, DeadlineExceeded):
                await work.terminate()
        elif job.job in self._jobs or job.owner == self._tools.term.worker:
            await _end_quietly(work)  # one of its own is from when it decoded: nobody wants it any more
        else:
            self._start(group, job, work)

    def _start(self, group: asyncio.TaskGroup, job: PrefillJob, work: Work | None) -> None:
        held = self._jobs[job.job] = HeldJob(job, self._tools)
        self.num_taken += 1
        group.create_task(self._see_through(held, work), name=f"job {job.job}")
        self.wake()

    async def _see_through(self, held: HeldJob, work: Work | None) -> None:
        job = held.job.job
        try:
            await _run_with_progress(held, work)
            self._metrics.jobs_served.inc()
            self._note_served()
        except GrantRefused as error:
            log.info("a job is done with already", extra={"job": job, "reason": str(error)})
        except KvmeshError as error:
            self._metrics.job_failed(error.code)
            log.warning("a prefill job failed", extra={"job": job, "reason": str(error)})
        finally:
            del self._jobs[job]
            self.wake()
        if work is not None:
            await _end_quietly(work)


def _read_job(work: Work) -> PrefillJob | None:
    """None for what no version of ours can have sent."""
    try:
        job = decode(work.payload, PrefillJob)
        check_id(job.owner, "owner")
    except InvalidRequest as error:
        log.error("a job cannot be read", extra={"reason": str(error)})
        return None
    return job


def _is_poison(work: Work) -> bool:
    """Whether every taker before us fell silent with it, and nobody would get it after us."""
    is_poison = work.is_last_delivery and work.num_deliveries > 1
    if is_poison:
        log.error("a job was taken %d times and never done: it is dropped", work.num_deliveries - 1)
    return is_poison


async def _run_with_progress(held: HeldJob, work: Work | None) -> None:
    """Run the job; tell the queue each second that it is being done."""
    if work is None:
        await held.run()
        return
    async with open_tasks() as tasks:
        telling = tasks.create_task(_tell_progress(work), name="job progress")
        try:
            await held.run()
        finally:
            telling.cancel()


async def _tell_progress(work: Work) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        await work.progress()


async def _end_quietly(work: Work) -> None:
    """The job is done with. Should the server not hear it, the next taker is refused the grant."""
    with suppress(Unavailable, DeadlineExceeded):
        await work.done()
