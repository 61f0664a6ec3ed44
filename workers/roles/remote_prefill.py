"""The life of one remote prefill at its owner: offer it, await its KV, else fall back to local prefill.

```
 offer ──► asked directly ──taken──► (grant asked for) ──► landed ──► the sequence goes on
   │            │ refused, silent          │ nobody asks
   │            ▼                          │ holder lost, gave up, too slow
   └──────► work queue ───────────────────►▼
                                        recall: prefill here
```
"""

import asyncio
import logging
from dataclasses import dataclass

from proto import subjects
from proto.codec import encode
from proto.control import CancelJob, Done, JobTaken, TakeJob
from proto.errors import DeadlineExceeded, KvmeshError, NoResponder
from services.tasks import open_tasks
from services.tracing import Tracing
from services.work_queue import WorkQueue
from workers.control_client import ControlClient
from workers.engine.engine import Engine
from workers.roles.lender import Lender
from workers.roles.owned_job import JobEnd, OwnedJob
from workers.roles.prefill_view import PrefillView

ASK_TIMEOUT_S = 1.0
NOBODY = "no prefill worker answers"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemotePrefillLimits:
    """Units: seconds from the offer until the grant must be asked for, and until the KV must have landed."""

    grant_wait_s: float
    landing_wait_s: float


class RemotePrefills:
    """Offers jobs of this worker and sees each to its end."""

    def __init__(
        self,
        ns: str,
        engine: Engine,
        lender: Lender,
        view: PrefillView,
        control: ControlClient,
        queue: WorkQueue,
        limits: RemotePrefillLimits,
        asks_directly: bool,
        tracing: Tracing,
    ) -> None:
        self._ns = ns
        self._engine = engine
        self._lender = lender
        self._view = view
        self._control = control
        self._queue = queue
        self._limits = limits
        self._asks_directly = asks_directly
        self._tracing = tracing
        self._queued: set[OwnedJob] = set()
        view.on_empty(self._give_up_queued)

    def has_room(self, num_tokens: int) -> bool:
        """Whether blocks for so many tokens could be lent now."""
        return self._lender.can_lend(num_tokens)

    def announce(self, owned: OwnedJob) -> None:
        """It counts where it is offered first from the moment of the choice on: the next choice knows it.
        `run` must follow."""
        if self._asks_directly:
            self._view.note_asked(owned.job.job, owned.end - owned.start, owned.best)
        else:
            self._view.note_queued(owned.job.job, owned.end - owned.start)

    async def run(self, owned: OwnedJob) -> JobEnd:
        """See the job to its end; afterwards the sequence is scheduled here, unless it was cancelled.

        Cancel: as an end of the job: its grant goes into quarantine.
        """
        self._lender.open_job(owned)
        end = JobEnd.CANCELLED
        try:
            with self._tracing.span("remote prefill", tokens=owned.end - owned.start):
                end = await self._see_through(owned)
        finally:
            owned.settle(JobEnd.CANCELLED)
            self._view.note_ended(owned.job.job)
            self._lender.close_job(owned)
            self._judge(owned, end)
            if end is JobEnd.FAILED:
                log.info("prefill falls back to here", extra={"job": owned.job.job, "reason": owned.reason})
                self._engine.recall(owned.sequence)
        if end is not JobEnd.LANDED and owned.grant is not None:
            await self._call_off(owned.grant.holder, owned.job.job)
        return end

    def _judge(self, owned: OwnedJob, end: JobEnd) -> None:
        if end is JobEnd.LANDED:
            self._view.forgive(owned.landed_by)
        elif owned.is_takers_fault:
            self._view.avoid(owned.holder)

    async def _see_through(self, owned: OwnedJob) -> JobEnd:
        """A job that ends while it is still being offered does not wait for the offer."""
        async with open_tasks() as tasks:
            offering = tasks.create_task(self._offer(owned), name=f"offer {owned.job.job}")
            try:
                async with asyncio.timeout(self._limits.landing_wait_s):
                    await owned.wait_ended()
            except TimeoutError:
                owned.fail(f"no landing within {self._limits.landing_wait_s} s")
            finally:
                offering.cancel()
        return await owned.wait_ended()

    async def _offer(self, owned: OwnedJob) -> None:
        """Until somebody has asked for the grant; else the job fails."""
        try:
            async with asyncio.timeout(self._limits.grant_wait_s):
                if not (self._asks_directly and await self._is_taken_directly(owned)):
                    if self._view.is_empty:
                        owned.settle(JobEnd.FAILED, NOBODY)
                        return
                    self._view.note_queued(owned.job.job, owned.end - owned.start)
                    payload = encode(owned.job, self._queue.bus.max_payload_bytes)
                    await self._queue.put(subjects.prefill(self._ns, owned.job.model), owned.job.job, payload)
                    self._queued.add(owned)
                await owned.wait_granted()
                if owned.grant is not None:
                    self._view.note_granted(owned.job.job)
        except TimeoutError:
            owned.fail(f"nobody took it within {self._limits.grant_wait_s} s")
        except KvmeshError as error:
            owned.settle(JobEnd.FAILED, str(error))
        finally:
            self._queued.discard(owned)

    def _give_up_queued(self) -> None:
        """Nobody is left who could take a job out of the queue."""
        for owned in self._queued:
            if owned.grant is None:
                owned.settle(JobEnd.FAILED, NOBODY)

    async def _is_taken_directly(self, owned: OwnedJob) -> bool:
        """Whether the best prefill worker says that it has taken it; one that is silent is avoided."""
        owned.taker = owned.best
        ask = TakeJob(owned.job, self._view.epoch_of(owned.best))
        try:
            taken = await self._control.ask(owned.best, ask, JobTaken, ASK_TIMEOUT_S)
        except KvmeshError as error:
            log.info("%s does not take a job", owned.best, extra={"reason": str(error)})
            owned.taker = ""
            if isinstance(error, NoResponder | DeadlineExceeded):
                self._view.avoid(owned.best)
            return False
        self._view.note_taken(owned.job.job, taken.number)
        return True

    async def _call_off(self, holder: str, job: str) -> None:
        """Tell the holder to stop at once; should this be lost, the patrol says it again."""
        try:
            await self._control.ask(holder, CancelJob(job), Done, ASK_TIMEOUT_S)
        except KvmeshError as error:
            log.info("%s was not told that a job ended", holder, extra={"reason": str(error)})
