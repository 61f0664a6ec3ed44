"""How a worker lets go of the work of the role that it leaves, within a limit.

```
 sequences move, or end here ─► jobs end, or go back ─► grants and pins end
```
At the limit, sequences go on elsewhere from the tokens they have, unless they were to finish here.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from proto.errors import DeadlineExceeded
from proto.roles import DrainMode, RoleStage
from workers.decode_desk import DecodeDesk
from workers.prefill_desk import PrefillDesk
from workers.roles.hand_over import HandOver
from workers.roles.lender import Lender

JOB_S = 0.3
"""How long a job may take to end where work is moved: its owner computes what goes back all over."""
END_S = 2.0
"""How long grants and pins have at least: their ends are messages on their way."""

OnStage = Callable[[RoleStage], None]


class LettingGo:
    """Belongs to the event loop. Its caller has seen to it that nothing new is taken."""

    def __init__(
        self, hand_over: HandOver, decode_desk: DecodeDesk, prefill_desk: PrefillDesk, lender: Lender
    ) -> None:
        self._hand_over = hand_over
        self._decode_desk = decode_desk
        self._prefill_desk = prefill_desk
        self._lender = lender

    @property
    def num_left(self) -> int:
        """Sequences and jobs, and grants and pins of neither; those in quarantine, which hold up nothing,
        aside."""
        served = self._decode_desk.served
        return len(served) + self._prefill_desk.num_jobs + self._lender.num_open_beside(served)

    async def run(self, mode: DrainMode, limit_s: float, on_stage: OnStage) -> None:
        """
        Cancel: what was let go is gone; what is left goes on here.

        Raises:
            DeadlineExceeded: something is left.
        """
        until_s = time.monotonic() + limit_s
        on_stage("handing over")
        if await self._hand_over.run(mode, limit_s):
            self._hand_over.note_left("stayed" if mode is DrainMode.FINISH else "sent_on")
            self._check_may_cut(mode, limit_s)
            self._decode_desk.send_elsewhere("it takes another role")
        await self._end_jobs(mode, max(0.0, until_s - time.monotonic()), limit_s)
        on_stage("ending grants")
        left_s = max(END_S, until_s - time.monotonic())
        if not await _is_done_within(self._wait_ended(), left_s):
            raise DeadlineExceeded(what="the end of all jobs, grants and pins", limit_s=limit_s)

    async def _end_jobs(self, mode: DrainMode, left_s: float, limit_s: float) -> None:
        patience_s = {
            DrainMode.FINISH: left_s,
            DrainMode.BOTH: left_s / 2,
            DrainMode.MOVE: min(JOB_S, left_s),
        }
        if not await _is_done_within(self._prefill_desk.wait_idle(), patience_s[mode]):
            self._check_may_cut(mode, limit_s)
            self._prefill_desk.give_back("it takes another role")

    def _check_may_cut(self, mode: DrainMode, limit_s: float) -> None:
        """
        Raises:
            DeadlineExceeded: what runs was to finish here.
        """
        if mode is DrainMode.FINISH:
            raise DeadlineExceeded(what="the work of the old role", limit_s=limit_s)

    async def _wait_ended(self) -> None:
        await self._prefill_desk.wait_idle()
        await self._lender.wait_ended()


async def _is_done_within(waiting: Awaitable[None], limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            await waiting
    except TimeoutError:
        return False
    return True
