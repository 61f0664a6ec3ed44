"""A place in which constraints are tried, one at a time: a child, and another one when that is killed."""

import asyncio
import signal
from collections.abc import Sequence

from proto.codec import encode
from proto.constraints import Constraint
from proto.errors import DeadlineExceeded, InternalFault
from services.asked_child import AskedChild, start_asked_child
from services.grammars.trial import TRIAL_BYTES

_MODULE = "services.grammars.trial"
NUM_TRIES = 2
TRIAL_LIMIT_S = 60.0
"""How long one may take by the clock: for a machine that stands still. What bounds it is the kernel."""


class TrialSlot:
    """Belongs to one event loop. The child starts with the first constraint."""

    def __init__(self, cpu_s: int, vocabulary: Sequence[str]) -> None:
        self._cpu_s = cpu_s
        self._vocabulary = vocabulary
        self._child: AskedChild | None = None

    @property
    def is_running(self) -> bool:
        return self._child is not None

    async def find_verdict(self, constraint: Constraint) -> str:
        """What is wrong with `constraint`; nothing if it can be used. Not before the last one has ended.

        Cancel: the child is killed.

        Raises:
            DeadlineExceeded: no verdict after `TRIAL_LIMIT_S`.
            InternalFault: somebody kills one child after the other, or none can be started.
        """
        verdict = None
        try:
            async with asyncio.timeout(TRIAL_LIMIT_S):
                for _ in range(NUM_TRIES):
                    verdict = await self._ask(encode(constraint))
                    if verdict is not None:
                        return verdict
        except TimeoutError as error:
            raise DeadlineExceeded(what="the trial of a constraint", limit_s=TRIAL_LIMIT_S) from error
        finally:
            if verdict is None:
                await self.close()  # half asked, it would answer the next one wrongly
        raise InternalFault(reason="the process that tries constraints is killed again and again")

    async def _ask(self, message: bytes) -> str | None:
        """The verdict; None when somebody has killed the child, which says nothing of the constraint."""
        child = self._child or await self._start()
        verdict = await asyncio.to_thread(child.try_ask, message)
        if verdict is not None:
            return verdict.decode()
        code = await asyncio.to_thread(child.wait_ended, TRIAL_LIMIT_S)
        await self.close()
        if code is None or code == -signal.SIGKILL:
            return None
        if code == -signal.SIGXCPU:
            return f"it takes more than {self._cpu_s} s to compile"
        return f"it takes more than {TRIAL_BYTES >> 20} MiB to compile, or the grammar library fails on it"

    async def _start(self) -> AskedChild:
        """
        Raises:
            InternalFault: it ended at once.
        """
        self._child = child = start_asked_child(_MODULE, [str(self._cpu_s), *self._vocabulary])
        if await asyncio.to_thread(child.try_hear) is None:  # its word that it is ready
            raise InternalFault(reason="no process to try constraints in can be started")
        return child

    async def close(self) -> None:
        """The child is killed; another one starts when it is needed."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            await asyncio.to_thread(child.end)
