"""A remote prefill as its owner sees it: offered, granted, and how it ended."""

import asyncio
from enum import Enum

from proto.jobs import PrefillJob
from workers.roles.grants import Grant


class JobEnd(Enum):
    LANDED = "landed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class OwnedJob:
    """One job, from its offer to its one end. Belongs to the event loop.

    `start` is how much of the prompt the sequence holds already, `end` how much shall be held after the
    landing: all but the prompt's last token. `best` is the prefill worker to be asked first, `taker` who took
    it when asked directly; `is_takers_fault` is set when who had it did not deliver.
    """

    def __init__(self, job: PrefillJob, sequence: str, start: int, end: int, best: str) -> None:
        self.job = job
        self.best = best
        self.sequence = sequence
        self.start = start
        self.end = end
        self.taker = ""
        self.is_takers_fault = False
        self.grant: Grant | None = None
        self.reason = ""
        self._granted = asyncio.Event()
        self._ended: asyncio.Future[JobEnd] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        return not self._ended.done()

    @property
    def landed_by(self) -> str:
        """Who computed it and pushed it here; empty while, and if, nobody did."""
        has_landed = self._ended.done() and self._ended.result() is JobEnd.LANDED
        return self.grant.holder if has_landed and self.grant is not None else ""

    def note_grant(self, grant: Grant) -> None:
        self.grant = grant
        self._granted.set()

    def settle(self, end: JobEnd, reason: str = "") -> None:
        """End the job; the first end counts."""
        if not self._ended.done():
            self.reason = reason
            self._ended.set_result(end)
            self._granted.set()

    def fail(self, reason: str) -> None:
        """Who has it did not deliver."""
        self.is_takers_fault = self.is_takers_fault or self.is_open
        self.settle(JobEnd.FAILED, reason)

    @property
    def holder(self) -> str:
        """Who has it, as far as is known here; empty when nobody does."""
        return self.grant.holder if self.grant is not None else self.taker

    def is_with(self, worker: str) -> bool:
        """Whether `worker` has taken it or holds its grant."""
        return worker == self.taker or (self.grant is not None and worker == self.grant.holder)

    async def wait_granted(self) -> None:
        """Until somebody has asked for the grant, or the job has ended."""
        await self._granted.wait()

    async def wait_ended(self) -> JobEnd:
        return await asyncio.shield(self._ended)
