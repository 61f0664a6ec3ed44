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
from contextlib import suppress

from proto.control import Done
from proto.errors import DeadlineExceeded, Disconnected, GoElsewhere, InvalidRequest, KvmeshError
from proto.hand_over import Drain
from proto.roles import WorkerState
from workers.prefill_desk import PrefillDesk
from workers.roles.hand_over import HandOver
from workers.roles.role_switch import RoleSwitch
from workers.roles.standing import Standing
from workers.roles.term import Term


class Drainer:
    """Belongs to the event loop; `run` holds what lets go. `connect` it before orders come."""

    def __init__(
        self, term: Term, hand_over: HandOver, prefill_desk: PrefillDesk, role_switch: RoleSwitch
    ) -> None:
        self._term = term
        self._hand_over = hand_over
        self._prefill_desk = prefill_desk
        self._role_switch = role_switch
        self._standing: Standing | None = None
        self._turn = asyncio.Lock()
        self._group: asyncio.TaskGroup | None = None
        self._letting_go: asyncio.Task[None] | None = None

    def connect(self, standing: Standing) -> None:
        self._standing = standing

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
            GoElsewhere: it is leaving, changing its role, or not ready yet.
            InvalidRequest: no time is given, or it is the last ready decode worker; all is as it was.
            Disconnected, DeadlineExceeded: the directory does not have it yet. One that is forced drains all
                the same; else all is as it was.
        """
        if not order.limit_s > 0:
            raise InvalidRequest(field="limit_s", reason=f"{order.limit_s} s is no time to drain in")
        async with self._turn:
            if order.is_forced:
                standing, group = self._begin(WorkerState.DRAINING)
                self._letting_go = group.create_task(self._let_go(order), name="drain")
                await standing.announce()
            else:
                await self._drain_checked(order)
        return Done()

    async def undrain(self) -> Done:
        """The worker takes work again. Raises as `drain`."""
        async with self._turn:
            standing, _ = self._begin(WorkerState.READY)
            await standing.announce()
        return Done()

    async def _drain_checked(self, order: Drain) -> None:
        """The card first, so that who drains another at this moment sees it; then the check, and the work."""
        before = self._term.state
        standing, group = self._begin(WorkerState.DRAINING)
        try:
            await standing.announce()
            await standing.check_may_drain()
        except (KvmeshError, asyncio.CancelledError):
            await self._return_to(before, standing)
            raise
        if self._term.state is WorkerState.DRAINING:
            self._letting_go = group.create_task(self._let_go(order), name="drain")

    async def _return_to(self, state: WorkerState, standing: Standing) -> None:
        if self._term.state is WorkerState.DRAINING:
            self._set(state)
            with suppress(Disconnected, DeadlineExceeded):
                await standing.announce()

    def _begin(self, state: WorkerState) -> tuple[Standing, asyncio.TaskGroup]:
        """The order before this one counts no more."""
        if self._term.state is WorkerState.LEAVING or self._standing is None or self._group is None:
            raise GoElsewhere(worker=self._term.worker, reason="it takes no orders now")
        if self._role_switch.is_under_way:
            raise GoElsewhere(worker=self._term.worker, reason="it is changing its role")
        self._stop()
        self._set(state)
        return self._standing, self._group

    def _set(self, state: WorkerState) -> None:
        self._term.turn(state)
        self._prefill_desk.wake()

    def _stop(self) -> None:
        if self._letting_go is not None:
            self._letting_go.cancel()
            self._letting_go = None

    async def _let_go(self, order: Drain) -> None:
        """Prefill jobs that do not end in time go back to their owners."""
        until_s = time.monotonic() + order.limit_s
        if await self._hand_over.run(order.mode, order.limit_s):
            self._hand_over.note_left("stayed")
        try:
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                await self._prefill_desk.wait_idle()
        except TimeoutError:
            self._prefill_desk.give_back("it drains")
