"""A follower's transfers: what its leader orders over the link, posted by a thread of its own."""

import asyncio
import logging
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np

from proto.errors import InternalFault, KvmeshError, to_fault
from proto.jobs import Landing
from proto.layout import PoolLayout
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
from workers.transfer.opened_rank import open_rank
from workers.transfer.own_memory import HiddenPool
from workers.transfer.transfer_thread import TransferThread
from workers.transfer.transfers import OnDone, Transfer

LOOK_S = 0.25

log = logging.getLogger(__name__)


class OrderedTransfers:
    """For the life of its context the leader may open them, once, and order. `pool` is this rank's.

    What moves at the end is given time to, as by any transfer thread.
    """

    def __init__(self, link: Link, pool: PoolLayout) -> None:
        self._link = link
        self._pool = pool
        self._moved_s: dict[Copies, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._link.on(OpenTransfers, self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _open(self, order: OpenTransfers) -> None:
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(order)), name="transfers", daemon=True
        )
        self._thread.start()

    def _listen(self, transfers: TransferThread, hidden: HiddenPool | None) -> None:
        """Before the leader hears that they are open, which is when it begins to order."""
        self._link.on(Move, lambda move: transfers.submit(self._transfer(move)))
        self._link.on(Notify, lambda asked: transfers.notify(asked.agent, asked.notice, self._teller(asked)))
        self._link.on(
            AddPeer, lambda asked: transfers.add_peer(asked.agent, asked.metadata, self._teller(asked))
        )
        self._link.on(RemovePeer, lambda order: transfers.remove_peer(order.agent))
        self._link.on(Expect, lambda order: transfers.expect(order.num_leaves))
        if hidden is not None:
            self._link.on(Carry, lambda asked: hidden.carry(_copies(asked), self._teller(asked)))

    async def _serve(self, order: OpenTransfers) -> None:
        try:
            with open_rank(order.agent, self._pool, order.parameters, order.staging, order.stall_s) as opened:
                transport = opened.transport
                transfers = TransferThread(transport, _hear_landing, self._note_moved, order.stall_s)
                async with transfers.running() as agent:
                    self._listen(transfers, opened.hidden)
                    self._send(TransfersOpen(agent))
                    await self._tell_of_ailments(transfers, opened.hidden)
        except KvmeshError as error:
            self._send(TransfersFailed(to_fault(error)))
        except Exception as error:  # else the leader would wait for ever for word of it
            log.exception("transfers have ended")
            self._send(TransfersFailed(to_fault(InternalFault(reason=type(error).__name__))))

    async def _tell_of_ailments(self, transfers: TransferThread, hidden: HiddenPool | None) -> None:
        """Until the end: whenever they are otherwise than the leader was told."""
        told = TransfersAil("", "")
        while not await asyncio.to_thread(self._ended.wait, LOOK_S):
            hung = "" if hidden is None else hidden.ailment()
            now = TransfersAil(transfers.fault, transfers.ailment or hung)
            if now != told:
                self._send(now)
                told = now

    def _transfer(self, order: Move) -> Transfer:
        copies = _copies(order)

        def on_done(fault: KvmeshError | None) -> None:
            moved_s = self._moved_s.pop(copies, 0.0)
            self._send(Settled(order.number, None if fault is None else to_fault(fault), moved_s))

        return Transfer(
            order.operation,
            order.agent,
            copies,
            order.remote_device,
            lambda: True,  # asked by the leader, before it ordered
            lambda: self._send(NotPosted(order.number)),
            on_done,
            lambda limit_s: self._send(Stuck(order.number, limit_s)),
        )

    def _note_moved(self, transfer: Transfer, took_s: float) -> None:
        self._moved_s[transfer.copies] = took_s

    def _teller(self, asked: Notify | AddPeer | Carry) -> OnDone:
        def on_done(fault: KvmeshError | None) -> None:
            self._send(Settled(asked.number, None if fault is None else to_fault(fault)))

        return on_done

    def _send(self, message: AnyMessage) -> None:
        """A leader that has gone needs no answer: this rank ends with it."""
        with suppress(InternalFault):
            self._link.send(message)


def _copies(order: Move | Carry) -> Copies:
    return Copies(np.frombuffer(order.copies, dtype=np.uint64).reshape(-1, 3))


def _hear_landing(landing: Landing) -> None:
    log.warning("a landing was told to a rank that does not speak for its worker")
