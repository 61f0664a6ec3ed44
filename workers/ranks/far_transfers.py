"""The transfers of a follower, as its leader orders them and hears of them over the link.

```
 submit ─► orders ─► thread: may it start? ─► link ─► the follower's transfer thread ─► NIXL
 on_done, on_moved, on_stalled ◄───────────── link ◄──────────┘
```

What has left for the follower is on its way until the follower says otherwise: one that is stopped before it
has posted anything may post it when it wakes.
"""

import asyncio
import itertools
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from proto.cards import RankAgent
from proto.errors import InternalFault, KvmeshError, PeerGone, from_fault
from workers.ranks.link import Link
from workers.ranks.messages import (
    AddPeer,
    AnyMessage,
    Carry,
    Expect,
    Move,
    Notify,
    NotPosted,
    OpenTransfers,
    RemovePeer,
    Settled,
    Stuck,
    TransfersAil,
    TransfersFailed,
    TransfersOpen,
)
from workers.transfer.copy_plan import Copies
from workers.transfer.transfers import OnDone, OnMoved, Transfer

ENDED = "they have ended"
CLOSE_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Order:
    """`begin` gives the message to be sent, or None when nothing is to be sent any more. `refuse` is called
    when it was not sent."""

    begin: Callable[[], AnyMessage | None]
    refuse: Callable[[], None]


class FarTransfers:
    """The `Transfers` of one follower. `on_moved` is called in the thread that reads the link."""

    def __init__(self, link: Link, on_moved: OnMoved) -> None:
        self._link = link
        self._on_moved = on_moved
        self._numbers = itertools.count()
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._moving: dict[int, Transfer] = {}
        self._asked: dict[int, OnDone] = {}
        self._said = TransfersAil("", "")
        self._has_ended = threading.Event()
        self._opened: Future[RankAgent] = Future()
        self._thread = threading.Thread(target=self._run, name=f"orders to {link.name}", daemon=True)

    @asynccontextmanager
    async def running(self, opening: OpenTransfers) -> AsyncIterator[RankAgent]:
        """For the life of the body the follower moves KV; yields how peers reach its memory.

        At the end what waits to be ordered is refused. The follower gives what moves there time to end.

        Raises:
            KvmeshError: NIXL does not start there, or the follower has gone.
        """
        self._listen()
        self._thread.start()
        try:
            self._orders.put(_Order(lambda: opening, lambda: None))
            yield await asyncio.wrap_future(self._opened)
        finally:
            self._orders.put(None)
            await asyncio.to_thread(self._thread.join, CLOSE_S)

    def _listen(self) -> None:
        self._link.on(TransfersOpen, self._hear_open)
        self._link.on(TransfersFailed, lambda message: self._fail_to_open(from_fault(message.fault)))
        self._link.on(Settled, self._hear_settled)
        self._link.on(NotPosted, self._hear_not_posted)
        self._link.on(Stuck, self._hear_stuck)
        self._link.on(TransfersAil, self._hear_ailment)

    @property
    def fault(self) -> str:
        """See `Transfers`. Of a follower that is silent its crew tells."""
        return ENDED if self._has_ended.is_set() else self._said.fault

    @property
    def ailment(self) -> str:
        """See `Transfers`."""
        return self.fault or self._said.ailment

    def submit(self, transfer: Transfer) -> None:
        """See `Transfers`."""
        number = next(self._numbers)

        def begin() -> Move | None:
            if not transfer.may_start():
                transfer.on_refused()
                return None
            self._moving[number] = transfer
            copies = transfer.copies.table.tobytes()
            return Move(number, transfer.operation, transfer.agent, copies, transfer.remote_device)

        def refuse() -> None:
            self._moving.pop(number, None)
            transfer.on_refused()

        self._put(_Order(begin, refuse))

    def carry(self, copies: Copies, on_done: OnDone) -> None:
        """Copy between the follower's pool and its staging."""
        self._ask(lambda number: Carry(number, copies.table.tobytes()), self._link.name, on_done)

    def notify(self, agent: str, notice: bytes, on_done: OnDone) -> None:
        """See `Transfers`."""
        self._ask(lambda number: Notify(number, agent, notice), agent, on_done)

    def add_peer(self, agent: str, metadata: bytes, on_done: OnDone) -> None:
        """See `Transfers`."""
        self._ask(lambda number: AddPeer(number, agent, metadata), agent, on_done)

    def _ask(self, message: Callable[[int], AnyMessage], agent: str, on_done: OnDone) -> None:
        number = next(self._numbers)
        self._asked[number] = on_done
        refusal = PeerGone(peer=agent, reason="transfers have ended")
        self._put(_Order(lambda: message(number), lambda: self._tell(number, refusal)))

    def remove_peer(self, agent: str) -> None:
        """See `Transfers`."""
        self._put(_Order(lambda: RemovePeer(agent), lambda: None))

    def expect(self, num_leaves: int) -> None:
        """See `Transfers`."""
        self._put(_Order(lambda: Expect(num_leaves), lambda: None))

    def close(self) -> None:
        """The follower has gone: nobody knows how far it was with the transfers that it was ordered."""
        self._orders.put(None)
        for number in list(self._asked):
            self._tell(number, PeerGone(peer=self._link.name, reason="it has gone"))
        self._fail_to_open(InternalFault(reason=f"{self._link.name} has gone"))

    def _fail_to_open(self, fault: KvmeshError) -> None:
        with suppress(InvalidStateError):  # they are open, or nobody waits for it any more
            self._opened.set_exception(fault)

    def _hear_open(self, message: TransfersOpen) -> None:
        with suppress(InvalidStateError):
            self._opened.set_result(message.agent)

    def _put(self, order: _Order) -> None:
        self._orders.put(order)
        if self._has_ended.is_set():
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Whoever takes an order refuses it, so each is refused once."""
        with suppress(queue.Empty):
            while True:
                order = self._orders.get_nowait()
                if order is not None:
                    order.refuse()

    def _run(self) -> None:
        """Until the end, or until the link has none."""
        try:
            while (order := self._orders.get()) is not None and self._has_sent(order):
                pass
        finally:
            self._has_ended.set()
            self._refuse_rest()

    def _has_sent(self, order: _Order) -> bool:
        message = order.begin()
        if message is None:
            return True
        try:
            self._link.send(message)
        except InternalFault as error:
            log.info("nothing more is ordered", extra={"reason": str(error)})
            order.refuse()
            return False
        return True

    def _tell(self, number: int, fault: KvmeshError | None) -> None:
        """Once, of what was asked under this number."""
        on_done = self._asked.pop(number, None)
        if on_done is not None:
            on_done(fault)

    def _hear_settled(self, message: Settled) -> None:
        fault = from_fault(message.fault) if message.fault is not None else None
        transfer = self._moving.pop(message.number, None)
        if transfer is None:
            self._tell(message.number, fault)
            return
        if fault is None:
            self._on_moved(transfer, message.moved_s)
        transfer.on_done(fault)

    def _hear_not_posted(self, message: NotPosted) -> None:
        transfer = self._moving.pop(message.number, None)
        if transfer is not None:
            transfer.on_refused()

    def _hear_stuck(self, message: Stuck) -> None:
        transfer = self._moving.get(message.number)
        if transfer is not None:
            transfer.on_stalled(message.limit_s)

    def _hear_ailment(self, message: TransfersAil) -> None:
        self._said = message
