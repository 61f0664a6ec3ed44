"""The hand-over of all that runs here: its frontends are asked to send successors, until none is left.

Whoever drains a worker, orders it into another role or ends it uses this one verb. What nobody takes goes on
here, and ends here if it is given the time.
"""

import asyncio
import logging

from proto.roles import DrainMode
from services.metrics import HandOverOutcome, WorkerMetrics
from workers.outbox import Outbox
from workers.served import ServedTable

ASK_S = 0.2

log = logging.getLogger(__name__)


class HandOver:
    """Belongs to the event loop. Its caller has seen to it that nothing new is taken."""

    def __init__(self, served: ServedTable, outbox: Outbox, metrics: WorkerMetrics) -> None:
        self._served = served
        self._outbox = outbox
        self._metrics = metrics

    async def run(self, mode: DrainMode, limit_s: float) -> int:
        """Until nothing is served here, or `limit_s` is over; how many are left then, which go on here.

        With `DrainMode.BOTH`, what ends within half of the time is not moved.

        Cancel: nobody else is asked to move. What has been asked may still go.
        """
        try:
            async with asyncio.timeout(limit_s):
                if mode is DrainMode.FINISH:
                    await self._served.wait_empty()
                if mode is DrainMode.BOTH:
                    await self._wait_ended(limit_s / 2)
                await self._move_all()
        except TimeoutError:
            log.info("not all was handed over", extra={"num_left": len(self._served)})
        return len(self._served)

    def note_left(self, outcome: HandOverOutcome) -> None:
        """What nobody took in time stays, or is about to be sent on: whose time it was knows which."""
        self._metrics.handed_over(outcome, len(self._served))

    async def _move_all(self) -> None:
        """Said again and again: a word may be lost, and who had no room may have some. A frontend heeds it
        for what it knows to be here, so the word that an attempt was accepted goes out before it."""
        while len(self._served):
            await self._outbox.flush()
            await self._outbox.please_move([served.stream for served in self._served.all()])
            await self._wait_ended(ASK_S)

    async def _wait_ended(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._served.wait_empty()
        except TimeoutError:
            return
