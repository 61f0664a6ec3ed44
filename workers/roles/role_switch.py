"""A worker takes another role, on an order that lies in the directory, while it goes on living.

```
 serving ─order─► handing over ─► ending grants ─► checking ─► announcing ─► serving, epoch n+1
    ▲                   └───────────────┴──────────────┘
    └── epoch n ── it failed, or the order was taken back: given up in the directory, once that is there
```
Every other part asks the one `Term` what it takes. From the order on that is nothing; the new epoch begins
between two steps of the loop, once the directory has said that it may.
"""

import asyncio
import logging
import time
from contextlib import suppress

from proto.errors import Conflict, DeadlineExceeded, Disconnected, GoElsewhere, KvmeshError
from proto.roles import Role, RoleProgress, RoleStage, SwitchRole, WorkerState
from services.backoff import Backoff
from services.metrics import SwitchOutcome, WorkerMetrics
from services.orders import PlacedOrder
from services.tasks import open_tasks
from workers.prefill_desk import PrefillDesk
from workers.roles.letting_go import LettingGo
from workers.roles.order_watch import OrderWatch
from workers.roles.standing import Standing
from workers.roles.term import Term

log = logging.getLogger(__name__)

TAKEN_BACK = "it was taken back"
NEWS_S = 2.0
"""How long an answer waits for what the directory tells of the order that it answers."""


class RoleSwitch:
    """Belongs to the event loop; `run` executes orders. `connect` it before they come.

    `reason` is why the last switch failed; empty when it did not.
    """

    def __init__(
        self,
        term: Term,
        orders: OrderWatch,
        letting_go: LettingGo,
        prefill_desk: PrefillDesk,
        metrics: WorkerMetrics,
    ) -> None:
        self._term = term
        self._orders = orders
        self._letting_go = letting_go
        self._prefill_desk = prefill_desk
        self._metrics = metrics
        self._standing: Standing | None = None
        self._under_way: PlacedOrder | None = None
        self._scope: asyncio.Timeout | None = None
        self._dealt_with: tuple[PlacedOrder, ...] = ()  # the last one that failed, as it was, and as begun
        self._stage: RoleStage = "serving"
        self._changed = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self.reason = ""

    def connect(self, standing: Standing) -> None:
        self._standing = standing
        self._changed.set()

    @property
    def is_under_way(self) -> bool:
        """Whether the term is about to end; not any more once the next one has begun."""
        return self._under_way is not None and self._stage != "announcing"

    def progress(self) -> RoleProgress:
        return RoleProgress(
            role=self._term.role,
            epoch=self._term.epoch,
            state=self._term.state,
            wanted=self._wanted(),
            stage=self._stage,
            num_left=self._letting_go.num_left if self.is_under_way else 0,
            reason=self.reason,
            num_served=self._term.num_served,
        )

    def _wanted(self) -> Role | None:
        placed = self._under_way or self._next()
        return placed.order.role if placed is not None else None

    async def order(self, ask: SwitchRole) -> RoleProgress:
        """Place the order, which comes back as anybody's would.

        Raises:
            GoElsewhere: it is leaving, or not ready yet.
            KvmeshError: as `place_order`.
        """
        if self._stage == "announcing":  # the order rests on the card, which has yet to say what beats say
            await self._wait_at_rest()
        order = await self._connected().place(ask)
        with suppress(TimeoutError):
            async with asyncio.timeout(NEWS_S):
                await self._orders.wait_seen(order)
        return self.progress()

    async def take_back(self) -> RoleProgress:
        """Raises as `services.orders.take_back`, and `GoElsewhere` as `order`."""
        await self._connected().take_back()
        await self._wait_at_rest()
        return self.progress()

    async def _wait_at_rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(NEWS_S):
                await self._at_rest.wait()

    def _connected(self) -> Standing:
        if self._standing is None or self._term.state is WorkerState.LEAVING:
            raise GoElsewhere(worker=self._term.worker, reason="it takes no orders now")
        return self._standing

    def leave(self) -> None:
        """The worker is leaving: a switch under way stops where it is. Its order stays, for the next life."""
        if self._scope is not None:
            self._stop(self._scope)

    async def run(self) -> None:
        """Execute orders, one after the other, for ever."""
        forget = self._orders.listen(self._term.worker, self._note_change)
        try:
            while True:
                self._changed.clear()
                placed = self._next()
                if placed is None or self._standing is None:
                    await self._changed.wait()
                else:
                    await self._execute(placed, self._standing)
        finally:
            forget()

    def _next(self) -> PlacedOrder | None:
        """The order that is to be executed; None while the one there is was dealt with."""
        placed = self._orders.find(self._term.worker)
        if placed is None or self._term.state is WorkerState.LEAVING:
            return None
        is_new = placed not in self._dealt_with and placed.order.epoch > self._term.epoch
        return placed if is_new else None

    def _note_change(self) -> None:
        self._changed.set()
        if self._scope is not None and self._under_way is not None and not self._stands(self._under_way):
            self._stop(self._scope)

    def _stands(self, placed: PlacedOrder) -> bool:
        """Whether the directory has it yet: as it was placed, or as this worker has begun it."""
        found = self._orders.find(self._term.worker)
        return found is not None and (found.revision == placed.revision or _is_begun(found, placed))

    def _stop(self, scope: asyncio.Timeout) -> None:
        if not scope.expired():
            scope.reschedule(asyncio.get_running_loop().time())

    async def _execute(self, placed: PlacedOrder, standing: Standing) -> None:
        began_s = time.monotonic()
        order = placed.order
        self._begin(placed)
        told = {"epoch": order.epoch, "placed_by": order.placed_by, "reason": order.reason}
        log.info("%s is to become a %s worker", order.worker, order.role, extra=told)
        fault = await self._try_switch(placed, standing)
        self._metrics.role_switched(order.role, _outcome(fault), time.monotonic() - began_s)
        if fault:
            kept = {"epoch": self._term.epoch}
            log.warning("%s stays a %s worker: %s", order.worker, self._term.role, fault, extra=kept)
            await self._go_on(placed, standing, fault)
        else:
            took_s = round(time.monotonic() - began_s, 3)
            log.info("%s is a %s worker", order.worker, order.role, extra={"took_s": took_s})
            await self._announce(standing)
            self._end("")

    def _begin(self, placed: PlacedOrder) -> None:
        self._under_way, self.reason = placed, ""
        self._at_rest.clear()

    def _end(self, reason: str) -> None:
        self._enter("serving")
        self._under_way, self.reason = None, reason
        self._at_rest.set()

    async def _try_switch(self, placed: PlacedOrder, standing: Standing) -> str:
        """Why the term is the old one; empty when the new one has begun."""
        try:
            async with asyncio.timeout(None) as self._scope:
                await self._switch(placed, standing)
        except TimeoutError:
            return "it is leaving" if self._term.state is WorkerState.LEAVING else TAKEN_BACK
        except KvmeshError as error:
            return str(error)
        finally:
            self._scope = None
        return ""

    async def _switch(self, placed: PlacedOrder, standing: Standing) -> None:
        """
        Cancel: the term is the old one, and draining.

        Raises:
            KvmeshError: likewise, or it was draining before.
        """
        order, term = placed.order, self._term
        term.check_takes(term.role)
        term.turn(WorkerState.DRAINING)
        async with open_tasks() as tasks:  # whoever is to move need not wait until all know of it
            tasks.create_task(standing.announce(), name="draining card")
            await self._letting_go.run(order.mode, order.limit_s, self._enter)
        self._enter("checking")
        await standing.begin(placed)
        if term.state is not WorkerState.DRAINING:
            raise GoElsewhere(worker=term.worker, reason=f"it is {term.state}")
        term.begin(order.role, order.epoch)
        self._enter("announcing")

    def _enter(self, stage: RoleStage) -> None:
        self._stage = stage
        self._prefill_desk.wake()  # the term may be another, and reports say so

    async def _announce(self, standing: Standing) -> None:
        """Should the directory be away: beats say it, and the card once it is back."""
        with suppress(Disconnected, DeadlineExceeded):
            await standing.announce()

    async def _go_on(self, placed: PlacedOrder, standing: Standing, fault: str) -> None:
        """In the old role. A worker that was draining before, or is leaving by now, is so still."""
        if self._stage != "serving" and self._term.state is WorkerState.DRAINING:
            self._term.turn(WorkerState.READY)
            await self._announce(standing)
        self._note_dealt_with(placed)
        self._end(fault)
        if self._term.state is not WorkerState.LEAVING:
            await self._give_up(placed, standing)

    def _note_dealt_with(self, placed: PlacedOrder) -> None:
        """What the watch shows of it from now on is late, or begun by a check whose answer was lost."""
        found = self._orders.find(self._term.worker)
        is_begun = found is not None and _is_begun(found, placed)
        self._dealt_with = (placed, found) if found is not None and is_begun else (placed,)

    async def _give_up(self, placed: PlacedOrder, standing: Standing) -> None:
        """Until the directory has it no more. While it is away a next life would take the order's role."""
        backoff = Backoff()
        while (found := self._orders.find(self._term.worker)) is not None and self._stands(placed):
            self._note_dealt_with(placed)
            try:
                await standing.give_up(found)
                return
            except Conflict:
                await asyncio.sleep(backoff.next_s())
            except (Disconnected, DeadlineExceeded) as error:
                log.info("the order is not given up yet", extra={"reason": str(error)})
                await asyncio.sleep(backoff.next_s())


def _is_begun(found: PlacedOrder, placed: PlacedOrder) -> bool:
    """Whether the one is the other, as this worker has begun it. Nobody is ordered twice into one epoch once
    it is begun."""
    return found.order.is_begun and found.order.epoch == placed.order.epoch


def _outcome(fault: str) -> SwitchOutcome:
    if not fault:
        return "done"
    return "taken_back" if fault == TAKEN_BACK else "failed"
