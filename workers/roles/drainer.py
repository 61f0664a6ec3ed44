"""Draining on an operator's word: nothing new is taken, what runs is let go, and the worker stays.

```
          Drain                        (all is let go, or the limit is over)
 ready ──────────► draining ──────────────────────────────────────────────────► draining, with nothing to do
   ▲                  │                                                                  │
   └──────────────────┴──────────────────────────── Undrain ─────────────────────────────┘
```
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from proto.control import Done
from proto.errors import GoElsewhere, InvalidRequest
from proto.hand_over import Drain
from proto.roles import WorkerState
from workers.prefill_desk import PrefillDesk
from workers.roles.hand_over import HandOver
from workers.roles.term import Term

Announce = Callable[[], Awaitable[None]]


class Drainer:
    """Belongs to the event loop; `run` holds what lets go. `connect` it before orders come."""

    def __init__(self, term: Term, hand_over: HandOver, prefill_desk: PrefillDesk) -> None:
        self._term = term
        self._hand_over = hand_over
        self._prefill_desk = prefill_desk
        self._announce: Announce | None = None
        self._group: asyncio.TaskGroup | None = None
        self._letting_go: asyncio.Task[None] | None = None

    def connect(self, announce: Announce) -> None:
        """`announce` has others hear of the term as it is now."""
        self._announce = announce

    async def run(self) -> None:
        """For ever. Cancel: nobody is asked any more to take what runs here."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None
                self._stop()

    async def drain(self, order: Drain) -> Done:
        """The worker is draining, and its card says so; what runs is let go from now on.

        Raises:
            GoElsewhere: it is leaving, or not ready yet.
            InvalidRequest: no time is given.
            DeadlineExceeded: the directory does not have it yet; it drains all the same.
        """
        if not order.limit_s > 0:
            raise InvalidRequest(field="limit_s", reason=f"{order.limit_s} s is no time to drain in")
        announce, group = self._begin(WorkerState.DRAINING)
        self._letting_go = group.create_task(self._let_go(order), name="drain")
        await announce()
        return Done()

    async def undrain(self) -> Done:
        """The worker takes work again. Raises as `drain`."""
        announce, _ = self._begin(WorkerState.READY)
        await announce()
        return Done()

    def _begin(self, state: WorkerState) -> tuple[Announce, asyncio.TaskGroup]:
        """The order before this one counts no more."""
        if self._term.state is WorkerState.LEAVING or self._announce is None or self._group is None:
            raise GoElsewhere(worker=self._term.worker, reason="it takes no orders now")
        self._stop()
        self._term.state = state
        self._prefill_desk.wake()
        return self._announce, self._group

    def _stop(self) -> None:
        if self._letting_go is not None:
            self._letting_go.cancel()
            self._letting_go = None

    async def _let_go(self, order: Drain) -> None:
        """Prefill jobs that do not end in time go back to their owners."""
        until_s = time.monotonic() + order.limit_s
        await self._hand_over.run(order.mode, order.limit_s)
        try:
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                await self._prefill_desk.wait_idle()
        except TimeoutError:
            self._prefill_desk.leave()
