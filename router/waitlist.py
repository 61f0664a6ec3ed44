"""Requests that wait at this router while every eligible worker is full, and what becomes of them.

```
 put ──► waiting ──► a worker has room ──► offered ──► taken      the worker's frames tell the client
            │                                │
            ├── deadline, no worker left, ───┴──► failed          a last frame from here tells the client
            │   somebody of higher priority
            └── cancelled: gone, or the cancel follows it to the worker
```
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from proto.cards import ModelCard
from proto.codec import encode
from proto.control import Cancel
from proto.errors import DeadlineExceeded, KvmeshError, Overloaded, to_fault
from proto.requests import Queued
from proto.streams import End, Frame, StepFrames
from proto.subjects import stream, worker_control
from router.chooser import Chooser
from router.forwarding import Forwarder, Pending, Reservation
from router.settings import RouterSettings
from router.waiting_room import WaitingRoom, Wish
from services.bus import Bus
from services.metrics import RouterMetrics

log = logging.getLogger(__name__)

CANCEL_LIMIT_S = 1.0
ENDING_RETRY_S = 1.0
DISPLACED_RETRY_S = 5.0
NOT_CANCELLED = -1


@dataclass(eq=False, slots=True)
class _Offer:
    """An attempt on its way to a worker; `cancelled` is the attempt to cancel there. Several of one request
    may be on their way at once."""

    request: str
    attempt: int
    cancelled: int = NOT_CANCELLED

    @property
    def is_over(self) -> bool:
        return self.cancelled >= self.attempt


class Waitlist:
    """Belongs to one event loop; one line a model. `wake` after every word that may mean room."""

    def __init__(
        self,
        router: str,
        settings: RouterSettings,
        bus: Bus,
        chooser: Chooser,
        forwarder: Forwarder,
        metrics: RouterMetrics,
    ) -> None:
        self._router = router
        self._settings = settings
        self._bus = bus
        self._chooser = chooser
        self._forwarder = forwarder
        self._metrics = metrics
        self._rooms: dict[str, WaitingRoom[Pending]] = {}
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._is_closed = False
        self._displaced: list[Pending] = []
        self._offers: list[_Offer] = []
        self._workers: dict[str, str] = {}  # where requests that had waited went; the last ones only

    def __len__(self) -> int:
        return sum(len(room) for room in self._rooms.values())

    def wake(self) -> None:
        self._news.set()

    def has_line(self, model: str) -> bool:
        """Whether somebody waits for this model already: who comes now stands in line."""
        return bool(self._rooms.get(model))

    def check(self, model: ModelCard, wish: Wish) -> float:
        """The wait that is expected of who comes now.

        Raises:
            Overloaded: it cannot wait here, or not long enough.
        """
        if self._is_closed:
            raise Overloaded(reason="this router is ending", retry_after_s=ENDING_RETRY_S)
        return self._room(model).expect(wish, time.monotonic(), self._chooser.seat_s(model))

    def put(self, pending: Pending) -> Queued:
        """Lets the request wait. Raises as `check`."""
        wait_s = self.check(pending.model, pending.wish)
        self._stand(pending)
        return Queued(self._router, wait_s)

    def _stand(self, pending: Pending) -> None:
        """The request stands in line, where it stood before if it comes back from workers that were full."""
        displaced = self._room(pending.model).put(pending, pending.wish, time.monotonic())
        if displaced is not None:
            self._displaced.append(displaced)
        self._empty.clear()
        self.wake()

    def _room(self, model: ModelCard) -> WaitingRoom[Pending]:
        room = self._rooms.get(model.name)
        if room is None:
            settings = self._settings
            room = self._rooms[model.name] = WaitingRoom(settings.queue_limit, settings.queue_wait_s)
        return room

    async def cancel(self, request: str, attempt: int) -> None:
        """Ends an attempt that waits here, and every earlier one; one that has gone on is cancelled there."""
        for room in self._rooms.values():
            room.take_where(lambda one: one.request.request == request and one.request.attempt <= attempt)
        self._note_empty()
        for offer in self._offers:
            if offer.request == request:
                offer.cancelled = max(offer.cancelled, attempt)
        if request in self._workers:
            await self._cancel_at(self._workers[request], request, attempt)

    async def run(self) -> None:
        """Sends on who waits, as workers get room. Without end."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news.clear()
                self._send_on(tasks)
                await self._wait_news()

    async def drain(self, limit_s: float) -> None:
        """Takes nothing new; returns when nobody waits. After `limit_s` the rest is told to ask elsewhere."""
        self._is_closed = True
        try:
            async with asyncio.timeout(limit_s):
                await self._empty.wait()
        except TimeoutError:
            fault = Overloaded(reason="this router is ending", retry_after_s=ENDING_RETRY_S)
            for pending in self._take_all():
                await self._fail(pending, fault)

    def _send_on(self, tasks: asyncio.TaskGroup) -> None:
        now_s = time.monotonic()
        for room in self._rooms.values():
            for pending in room.take_expired(now_s):
                late = DeadlineExceeded(what="the wait for a worker", limit_s=pending.request.deadline_s)
                self._start_failing(pending, late, tasks)
            self._seat(room, tasks)
        while self._displaced:
            fault = Overloaded(reason="others are of higher priority", retry_after_s=DISPLACED_RETRY_S)
            self._start_failing(self._displaced.pop(), fault, tasks)
        self._note_empty()

    def _seat(self, room: WaitingRoom[Pending], tasks: asyncio.TaskGroup) -> None:
        """Sends on who can go. Once all workers are full for somebody who may go to any, they are for all."""
        is_full = False

        def may_go(pending: Pending) -> bool:
            nonlocal is_full
            is_placed = not is_full and self._try_start(pending, tasks)
            is_full = is_full or not (is_placed or pending.request.exclude)
            return is_placed

        room.take_where(may_go)

    def _start_failing(self, pending: Pending, error: KvmeshError, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self._fail(pending, error), name=f"fail-{pending.request.request}")

    def _try_start(self, pending: Pending, tasks: asyncio.TaskGroup) -> bool:
        """Whether the request need wait no longer: it has a worker, or there is none at all."""
        try:
            reservation = self._forwarder.try_reserve(pending, pending.request.exclude)
        except KvmeshError as error:
            self._start_failing(pending, error, tasks)
            return True
        if reservation is None:
            return False
        offer = _Offer(pending.request.request, pending.request.attempt)
        self._offers.append(offer)
        tasks.create_task(self._send(pending, reservation, offer), name=f"queued-{offer.request}")
        return True

    async def _send(self, pending: Pending, reservation: Reservation, offer: _Offer) -> None:
        try:
            routed = await self._forwarder.try_forward(pending, reservation)
            if routed is None and not offer.is_over:
                self._stand(pending)
        except KvmeshError as error:
            await self._fail(pending, error)
            return
        finally:
            self._offers.remove(offer)
            self._note_empty()
        if routed is not None:
            now_s = time.monotonic()
            self._room(pending.model).note_seat(now_s)
            self._metrics.queue_wait_s.observe(now_s - pending.arrived_s)
            await self._remember(offer, routed.decision.worker)

    async def _remember(self, offer: _Offer, worker: str) -> None:
        """Notes where the request went, and sends a cancel after it that came meanwhile."""
        self._workers[offer.request] = worker
        if len(self._workers) > self._settings.open_limit:
            del self._workers[next(iter(self._workers))]
        if offer.cancelled != NOT_CANCELLED:
            await self._cancel_at(worker, offer.request, offer.cancelled)

    async def _cancel_at(self, worker: str, request: str, attempt: int) -> None:
        subject = worker_control(self._settings.mesh.ns, worker)
        try:
            await self._bus.request(subject, encode(Cancel(request, attempt)), CANCEL_LIMIT_S)
        except KvmeshError as error:
            log.info("a cancel did not reach %s: %s", worker, error)

    async def _fail(self, pending: Pending, error: KvmeshError) -> None:
        """The end of a request that was told to wait: a frame on its client's stream."""
        self._metrics.decided(error.code)
        request = pending.request
        end = End(finish=None, fault=to_fault(error))
        frame = Frame(request.request, request.attempt, request.offset, end=end)
        message = StepFrames(self._router, self._router, [frame])
        try:
            await self._bus.publish(stream(self._settings.mesh.ns, request.client), encode(message))
        except KvmeshError as lost:
            log.warning("an end did not reach %s: %s", request.client, lost)

    def _take_all(self) -> Iterator[Pending]:
        for room in self._rooms.values():
            yield from room.take_where(lambda _: True)

    def _note_empty(self) -> None:
        if not len(self) and not self._offers:
            self._empty.set()

    async def _wait_news(self) -> None:
        """Waits for a word that may mean room, or for the first deadline."""
        expiries = [room.next_expiry_s() for room in self._rooms.values()]
        first_s = min((expiry for expiry in expiries if expiry is not None), default=None)
        try:
            async with asyncio.timeout(None if first_s is None else max(0.0, first_s - time.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return
