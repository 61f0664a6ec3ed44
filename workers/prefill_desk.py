"""Which prefill jobs this worker takes: asked directly, or fetched from the work queue."""

import asyncio
import logging
from contextlib import suppress

from proto import subjects
from proto.codec import decode
from proto.errors import DeadlineExceeded, GoElsewhere, GrantRefused, InvalidRequest, KvmeshError, Unavailable
from proto.jobs import PrefillJob
from proto.roles import Role
from services.metrics import WorkerMetrics
from services.taker import Taker, open_taker
from services.tasks import open_tasks
from services.work_queue import Work, WorkQueue
from workers.roles.held_job import HeldJob, HolderTools

FETCH_S = 5.0
PROGRESS_S = 1.0

log = logging.getLogger(__name__)


class PrefillDesk:
    """Jobs in hand, each a task of `run`'s group; at most `max_jobs`."""

    def __init__(
        self, ns: str, model: str, tools: HolderTools, queue: WorkQueue, max_jobs: int, metrics: WorkerMetrics
    ) -> None:
        self._subject = subjects.prefill(ns, model)
        self._model = model
        self._tools = tools
        self._queue = queue
        self._max_jobs = max_jobs
        self._metrics = metrics
        self._jobs: dict[str, HeldJob] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    @property
    def num_jobs(self) -> int:
        return len(self._jobs)

    @property
    def num_tokens(self) -> int:
        return sum(job.num_tokens for job in self._jobs.values())

    def take(self, job: PrefillJob) -> None:
        """Take a job that was asked for directly; one in hand already is taken twice.

        Raises:
            GoElsewhere: no such work now, or as many jobs in hand as may be.
        """
        self._tools.term.check_takes(Role.PREFILL)
        if job.job in self._jobs:
            return
        if job.model != self._model:
            raise GoElsewhere(worker=self._tools.term.worker, reason=f"its model is {self._model}")
        if len(self._jobs) >= self._max_jobs or self._group is None:
            raise GoElsewhere(worker=self._tools.term.worker, reason="it has all the jobs it may have")
        self._start(job, None)

    def cancel(self, job: str) -> None:
        """The owner wants it no more. Unknown jobs are nothing to end."""
        running = self._running.get(job)
        if running is not None:
            running.cancel()

    async def run(self) -> None:
        """Work, and fetch more while this worker's role is to prefill. Cancel: ends every job in order."""
        async with asyncio.TaskGroup() as group, open_taker(self._queue, self._subject) as taker:
            self._group = group
            try:
                while True:
                    await self._wait_room()
                    await self._fetch(taker)
            finally:
                self._group = None

    async def wait_idle(self) -> None:
        """Until no job is in hand."""
        while self._jobs:
            self._changed.clear()
            await self._changed.wait()

    def wake(self) -> None:
        """The term has changed."""
        self._changed.set()

    async def _wait_room(self) -> None:
        while not self._has_room():
            self._changed.clear()
            await self._changed.wait()

    def _has_room(self) -> bool:
        try:
            self._tools.term.check_takes(Role.PREFILL)
        except GoElsewhere:
            return False
        return len(self._jobs) < self._max_jobs

    async def _fetch(self, taker: Taker) -> None:
        work = await taker.fetch(FETCH_S)
        if work is None:
            return
        if not self._has_room():
            with suppress(Unavailable, DeadlineExceeded):
                await work.give_back()
            return
        try:
            job = decode(work.payload, PrefillJob)
        except InvalidRequest as error:
            log.error("a job cannot be read", extra={"reason": str(error)})
            await _end_quietly(work)
            return
        if job.job in self._jobs:
            return
        self._start(job, work)

    def _start(self, job: PrefillJob, work: Work | None) -> None:
        assert self._group is not None
        held = self._jobs[job.job] = HeldJob(job, self._tools)
        self._running[job.job] = self._group.create_task(self._see_through(held, work), name=f"job {job.job}")

    async def _see_through(self, held: HeldJob, work: Work | None) -> None:
        try:
            async with asyncio.timeout(held.job.deadline_s):
                await _with_progress(held, work)
            self._metrics.jobs_served.inc()
        except GrantRefused as error:
            log.info("a job is done with already", extra={"job": held.job.job, "reason": str(error)})
        except (KvmeshError, TimeoutError) as error:
            self._metrics.job_failed(error.code if isinstance(error, KvmeshError) else "deadline_exceeded")
            log.warning("a prefill job failed", extra={"job": held.job.job, "reason": str(error)})
        except asyncio.CancelledError:
            # The owner's word ends this task alone; the desk's own end goes on up.
            if self._group is None:
                raise
        finally:
            del self._jobs[held.job.job], self._running[held.job.job]
            self._changed.set()
            if work is not None:
                await _end_quietly(work)


async def _with_progress(held: HeldJob, work: Work | None) -> None:
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
