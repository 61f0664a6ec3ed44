"""The one thread that drives NIXL: posts transfers in order, watches them, and hears landing notices.

```
 engine thread ──┐                                      ┌─► on_done, on_landing (called in this thread)
 event loop ─────┼─► orders (bounded by who submits) ─► thread ─► NIXL
```

What waits for one peer leaves in one post: each costs as much as the copying of half a megabyte.

NIXL has nothing to wait on, and moves only while it is looked at. A look costs about a microsecond: there
is one each `POLL_S` while a transfer moves, a peer may touch this memory, or something was done just now, and
one each `IDLE_LOOK_S` otherwise, so that peers can say hello and goodbye.

A transfer that takes longer than `stall_s` is told of and goes on: nothing can call it back; what follows
goes another way (see `nixl_transport`). A call of the library that takes longer has hung the thread, which is
a fault of the whole process.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from proto.cards import RankAgent
from proto.codec import decode
from proto.errors import InvalidRequest, KvmeshError, PeerGone, TransferFault
from proto.jobs import Landing
from workers.transfer.kv_transport import KvTransport
from workers.transfer.looks import IDLE_LOOK_S, POLL_S
from workers.transfer.nixl_agent import TransferState
from workers.transfer.post import Post
from workers.transfer.transfers import OnDone, OnLanding, OnMoved, Transfer

LINGER_S = 0.1
CLOSE_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Order:
    """`refuse` is called instead of `carry_out` when the thread has ended."""

    carry_out: Callable[[], None]
    refuse: Callable[[], None]


_LOOK = _Order(lambda: None, lambda: None)
"""Makes the thread look again."""


@dataclass(slots=True)
class _Moving:
    """`posted` is what the transport knows it by; None while there is no room for it."""

    post: Post
    began_s: float
    posted: Any = None
    is_stalled: bool = False


class TransferThread:
    """The `Transfers` of a `KvTransport`, which it owns.

    `on_landing` and `on_moved` (a transfer that is done, and the seconds it took) are called in the thread.
    """

    def __init__(
        self, transport: KvTransport, on_landing: OnLanding, on_moved: OnMoved, stall_s: float
    ) -> None:
        self._stall_s = stall_s
        self._looked_s = 0.0
        self._transport = transport
        self._on_landing = on_landing
        self._on_moved = on_moved
        self._orders: queue.SimpleQueue[_Order | Transfer | None] = queue.SimpleQueue()
        self._next: Post | None = None
        self._moving: list[_Moving] = []
        self._leaving: set[str] = set()
        self._returning: dict[str, _Order] = {}
        self._expected = 0
        self._busy_until_s = 0.0
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transfer", daemon=True)
        self._opened: Future[RankAgent] = Future()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RankAgent]:
        """Run the thread for the life of the body; yields how peers reach this memory.

        At the end, what moves is given `CLOSE_S` to end, and what waits is refused.

        Raises:
            InternalFault: NIXL does not start.
        """
        self._looked_s = time.monotonic()
        self._thread.start()
        try:
            yield await asyncio.wrap_future(self._opened)
        finally:
            self._orders.put(None)
            await asyncio.to_thread(self._thread.join, 2 * CLOSE_S)

    @property
    def fault(self) -> str:
        """See `Transfers`. After a stop of the whole process it says for a moment that the thread hangs."""
        if not self._thread.is_alive() or self._has_ended.is_set():
            return "they have ended"
        silent_s = time.monotonic() - self._looked_s
        return f"a call has not returned for {silent_s:.0f} s" if silent_s > self._stall_s else ""

    @property
    def ailment(self) -> str:
        """See `Transfers`."""
        stalled = [moving for moving in list(self._moving) if moving.is_stalled]
        if self.fault or not stalled:
            return self.fault
        age_s = time.monotonic() - min(moving.began_s for moving in stalled)
        return f"{len(stalled)} have not ended, one for {age_s:.0f} s"

    def submit(self, transfer: Transfer) -> None:
        self._put(transfer)

    def notify(self, agent: str, notice: bytes, on_done: OnDone) -> None:
        self._put(_order_of(lambda: self._transport.notify(agent, notice), agent, on_done))

    def add_peer(self, agent: str, metadata: bytes, on_done: OnDone) -> None:
        adding = _order_of(lambda: self._transport.add_peer(agent, metadata), agent, on_done)
        self._put(_Order(lambda: self._add(agent, adding), adding.refuse))

    def remove_peer(self, agent: str) -> None:
        self._put(_Order(lambda: self._dismiss(agent), lambda: None))

    def expect(self, num_leaves: int) -> None:
        self._put(_Order(lambda: self._set_expected(num_leaves), lambda: None))

    def _wake(self) -> None:
        self._orders.put(_LOOK)

    def _put(self, order: _Order | Transfer) -> None:
        self._orders.put(order)
        if self._has_ended.is_set():
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Whoever takes an order refuses it, so each is refused once."""
        try:
            while True:
                order = self._orders.get_nowait()
                if isinstance(order, Transfer):
                    order.on_refused()
                elif order is not None:
                    order.refuse()
        except queue.Empty:
            return

    def _add(self, agent: str, adding: _Order) -> None:
        """One that is leaving returns once it has left: its connection may be a dead one."""
        if agent in self._leaving:
            self._returning[agent] = adding
        else:
            adding.carry_out()

    def _dismiss(self, agent: str) -> None:
        self._leaving.add(agent)
        returning = self._returning.pop(agent, None)
        if returning is not None:
            returning.refuse()

    def _set_expected(self, num_leaves: int) -> None:
        self._expected = num_leaves

    def _run(self) -> None:
        try:
            self._opened.set_result(self._transport.open(self._wake))
        except KvmeshError as error:
            self._opened.set_exception(error)
            return
        try:
            while self._take_orders():
                self._look()
            self._finish_moving()
        finally:
            self._has_ended.set()
            for returning in self._returning.values():
                returning.refuse()
            self._refuse_rest()

    def _finish_moving(self) -> None:
        """What still moves at the end keeps its memory registered: the process ends with it."""
        end_s = time.monotonic() + CLOSE_S
        self._refuse_unposted()
        while self._moving and time.monotonic() < end_s:
            self._look()
            time.sleep(POLL_S)
        if not self._moving:
            self._transport.close()

    def _refuse_unposted(self) -> None:
        """What waited for room has none to wait for any more."""
        unposted = [moving for moving in self._moving if moving.posted is None]
        self._moving = [moving for moving in self._moving if moving.posted is not None]
        for moving in unposted:
            for transfer in moving.post.transfers:
                transfer.on_refused()

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        self._check_moving()
        self._hear_notices()
        self._remove_leaving()

    def _take_orders(self) -> bool:
        """Carry out what is queued, waiting for it if there is nothing else to do; False: the end."""
        try:
            order = self._orders.get(timeout=IDLE_LOOK_S if self._is_idle else POLL_S)
            while order is not None:
                self._carry_out(order)
                order = self._orders.get_nowait()
        except queue.Empty:
            self._post_next()
            return True
        self._post_next()
        return False

    def _carry_out(self, order: _Order | Transfer) -> None:
        """In the order of the queue; but a transfer waits for those behind it that may leave with it."""
        self._busy_until_s = time.monotonic() + LINGER_S
        if order is _LOOK:
            return
        if isinstance(order, Transfer) and self._next is not None and self._next.try_join(order):
            return
        self._post_next()
        if isinstance(order, Transfer):
            self._next = Post(order)
        else:
            order.carry_out()

    @property
    def _is_idle(self) -> bool:
        is_at_work = self._moving or self._expected or self._leaving
        return not is_at_work and time.monotonic() >= self._busy_until_s

    def _post_next(self) -> None:
        post, self._next = self._next, None
        if post is not None:
            self._moving.append(_Moving(post, time.monotonic()))
            self._check_moving()

    def _check_moving(self) -> None:
        self._moving = [moving for moving in self._moving if not self._is_over(moving)]

    def _is_over(self, moving: _Moving) -> bool:
        if moving.posted is None and self._is_over_before(moving):
            return True
        if moving.posted is None:
            self._check_age(moving)
            return False
        fault: KvmeshError | None = None
        try:
            if self._transport.check(moving.post.agent, moving.posted) is TransferState.MOVING:
                self._check_age(moving)
                return False
            moving.post.tell_moved(self._on_moved, time.monotonic() - moving.began_s)
        except KvmeshError as error:
            fault = error
        self._transport.release(moving.posted)
        moving.post.end(fault)
        return True

    def _is_over_before(self, moving: _Moving) -> bool:
        """Whether nothing of it will be posted; else it is now, if there is room."""
        post = moving.post
        post.drop_unstartable()
        if not post.transfers:
            return True
        began_s = time.monotonic()
        try:
            moving.posted = self._transport.try_post(
                post.operation, post.agent, post.copies, post.remote_device
            )
        except KvmeshError as error:
            post.end(error)
            return True
        if moving.posted is not None:
            moving.began_s = began_s
        return False

    def _check_age(self, moving: _Moving) -> None:
        age_s = time.monotonic() - moving.began_s
        if moving.is_stalled or age_s <= self._stall_s:
            return
        post = moving.post
        is_first = post.agent not in {other.post.agent for other in self._moving if other.is_stalled}
        moving.is_stalled = True
        size = {"agent": post.agent, "num_bytes": post.num_bytes}
        level = logging.ERROR if is_first else logging.DEBUG  # one line a peer
        log.log(level, "a %s has not ended after %.0f s", post.operation, age_s, extra=size)
        post.tell_stalled(self._stall_s)
        if moving.posted is not None:
            self._transport.note_stuck(moving.posted)

    def _hear_notices(self) -> None:
        for notice in self._transport.take_notices():
            try:
                self._on_landing(decode(notice, Landing))
            except InvalidRequest:
                log.warning("a peer sent a notice of %d bytes that is no landing", len(notice))

    def _remove_leaving(self) -> None:
        """A peer removed while something moves would seem to have failed, and its bytes might still land.

        Nobody waits for what is stuck: the transport keeps what it needs for it."""
        moving = {moving.post.agent for moving in self._moving if not moving.is_stalled}
        for agent in self._leaving - moving:
            self._leaving.discard(agent)
            try:
                self._transport.remove_peer(agent)
            except TransferFault as error:
                log.info("a former peer was gone already", extra={"reason": str(error)})
            returning = self._returning.pop(agent, None)
            if returning is not None:
                returning.carry_out()


def _order_of(call: Callable[[], None], agent: str, on_done: OnDone) -> _Order:
    """A call of the library about `agent`, and who is told how it went."""

    def carry_out() -> None:
        try:
            call()
        except TransferFault as error:
            on_done(error)
        else:
            on_done(None)

    refusal = PeerGone(peer=agent, reason="transfers have ended, or it was removed")
    return _Order(carry_out, lambda: on_done(refusal))
