"""The one thread that drives NIXL: posts transfers in order, watches them, and hears landing notices.

```
 engine thread ──┐                                      ┌─► on_done, on_landing (called in this thread)
 event loop ─────┼─► orders (bounded by who submits) ─► thread ─► NIXL
```

Idle, it sleeps on its queue. While a transfer moves or a landing is expected it looks each `POLL_S`: NIXL
has nothing to wait on, and a look costs about a microsecond.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from proto.cards import RankAgent
from proto.codec import decode
from proto.errors import InvalidRequest, KvmeshError, PeerGone, TransferFault
from proto.jobs import Landing
from proto.layout import Copy
from workers.transfer.nixl_transport import NixlTransport, Operation, TransferState

POLL_S = 0.0005
CLOSE_S = 5.0

log = logging.getLogger(__name__)

OnDone = Callable[[KvmeshError | None], None]
OnLanding = Callable[[Landing], None]
OnMoved = Callable[[Operation, int], None]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One posted operation.

    `may_start` is asked right before the post, in the transfer thread: a holder whose grant has ended in the
    meantime must not write. `on_done` is called once, in the transfer thread, with None or what went wrong;
    after it, nothing of this transfer is on its way.
    """

    operation: Operation
    agent: str
    copies: Sequence[Copy]
    remote_device: str
    may_start: Callable[[], bool]
    on_done: OnDone


@dataclass(slots=True)
class _Moving:
    transfer: Transfer
    handle: Any
    fault: KvmeshError | None = None


class TransferThread:
    """Owns a `NixlTransport`; every method may be called from any thread.

    `on_landing` and `on_moved` (bytes, when a transfer is done) are called in the thread.
    """

    def __init__(self, transport: NixlTransport, on_landing: OnLanding, on_moved: OnMoved) -> None:
        self._transport = transport
        self._on_landing = on_landing
        self._on_moved = on_moved
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._moving: list[_Moving] = []
        self._expected = 0
        self._thread = threading.Thread(target=self._run, name="transfer", daemon=True)
        self._opened: Future[RankAgent] = Future()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RankAgent]:
        """Run the thread for the life of the body; yields how peers reach this memory.

        Raises:
            InternalFault: NIXL does not start.
        """
        self._thread.start()
        try:
            yield await asyncio.wrap_future(self._opened)
        finally:
            self._orders.put(None)
            await asyncio.to_thread(self._thread.join, CLOSE_S)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, transfer: Transfer) -> None:
        """Post a transfer after all that was submitted before."""
        self._orders.put(lambda: self._post(transfer))

    def notify(self, agent: str, notice: bytes, on_done: OnDone) -> None:
        """Send a notice; what was `on_done` before this call lies at the target when the notice is heard."""
        self._orders.put(lambda: self._notify(agent, notice, on_done))

    def add_peer(self, metadata: bytes) -> "Future[None]":
        done: Future[None] = Future()
        self._orders.put(lambda: _settle(done, lambda: self._transport.add_peer(metadata)))
        return done

    def remove_peer(self, agent: str) -> "Future[None]":
        done: Future[None] = Future()
        self._orders.put(lambda: _settle(done, lambda: self._transport.remove_peer(agent)))
        return done

    def expect(self, num_landings: int) -> None:
        """Set how many landings may come; while any may, notices are looked for."""
        self._orders.put(lambda: self._set_expected(num_landings))

    def _set_expected(self, num_landings: int) -> None:
        self._expected = num_landings

    def _run(self) -> None:
        try:
            self._opened.set_result(self._transport.open())
        except KvmeshError as error:
            self._opened.set_exception(error)
            return
        while self._take_orders():
            self._check_moving()
            self._hear_notices()
        self._transport.close()

    def _take_orders(self) -> bool:
        """Carry out what is queued, waiting for it if there is nothing else to do; False: the end."""
        is_idle = not self._moving and not self._expected
        try:
            order = self._orders.get(timeout=None if is_idle else POLL_S)
            while order is not None:
                order()
                order = self._orders.get_nowait()
        except queue.Empty:
            return True
        return False

    def _post(self, transfer: Transfer) -> None:
        if not transfer.may_start():
            transfer.on_done(PeerGone(peer=transfer.agent, reason="the leave to do so has ended"))
            return
        try:
            handle = self._transport.post(
                transfer.operation, transfer.agent, transfer.copies, transfer.remote_device
            )
        except TransferFault as error:
            transfer.on_done(error)
            return
        self._moving.append(_Moving(transfer, handle))
        self._check_moving()

    def _notify(self, agent: str, notice: bytes, on_done: OnDone) -> None:
        try:
            self._transport.notify(agent, notice)
        except TransferFault as error:
            on_done(error)
        else:
            on_done(None)

    def _check_moving(self) -> None:
        self._moving = [moving for moving in self._moving if not self._is_over(moving)]

    def _is_over(self, moving: _Moving) -> bool:
        transfer = moving.transfer
        if moving.fault is None:
            try:
                if self._transport.check(transfer.agent, moving.handle) is TransferState.MOVING:
                    return False
                self._on_moved(transfer.operation, sum(copy.num_bytes for copy in transfer.copies))
            except TransferFault as error:
                moving.fault = error
        # A failed transfer counts as over only once the library lets go of it: until then it may write.
        if not self._transport.release(moving.handle):
            return False
        transfer.on_done(moving.fault)
        return True

    def _hear_notices(self) -> None:
        if not self._expected:
            return
        for notice in self._transport.take_notices():
            try:
                self._on_landing(decode(notice, Landing))
            except InvalidRequest:
                log.warning("a peer sent a notice of %d bytes that is no landing", len(notice))


def _settle(done: "Future[None]", action: Callable[[], None]) -> None:
    try:
        action()
    except KvmeshError as error:
        done.set_exception(error)
    else:
        done.set_result(None)
