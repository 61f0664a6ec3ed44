"""The bus: publish, request, subscribe, over a link that comes back for ever.

Messages are not kept while disconnected: what matters is sent again by who knows whether it still matters.
Handlers only enqueue. A perishable subscription drops what had been buffered while this process's loop was
late: everything until one round trip with the server after the wake-up, because the server sends in order.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

from proto.errors import DeadlineExceeded, Disconnected, NoResponder, PayloadTooLarge
from proto.names import new_id
from services.bus_link import BusSettings, Interest, Link, Listener
from services.loop_watch import LoopWatch, watch_loop
from services.tasks import open_tasks

__all__ = ["Bus", "BusSettings", "Delivery", "Handler", "Listener", "Subscription", "Wish", "open_bus"]

log = logging.getLogger(__name__)

STATUS_HEADER = "Status"
NO_RESPONDERS = "503"
PROBE_HEADER = "Kvmesh-Probe"

UNSETTLED_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that came. `term` is the term of this process's loop in which it was handed over."""

    subject: str
    payload: bytes
    reply: str
    headers: Mapping[str, str]
    term: int
    bus: "Bus"

    async def respond(self, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answers the sender, if it asked for an answer. Raises as `Bus.publish`."""
        if self.reply:
            await self.bus.publish(self.reply, payload, headers=headers)

    @property
    def is_expired(self) -> bool:
        """Whether the loop was late since this came: then it must not be acted on."""
        return self.bus.watch.check() != self.term

    @property
    def is_no_responder(self) -> bool:
        return not self.payload and self.headers.get(STATUS_HEADER) == NO_RESPONDERS


Handler = Callable[[Delivery], None]
"""Called on the loop for each message: it enqueues and returns. What it raises is logged and ends nothing."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Messages on `subject` to `handler`; of a `queue` group one member gets each."""

    subject: str
    handler: Handler
    queue: str = ""
    perishable: bool = False


class Subscription:
    """Interest in a subject that survives reconnects, until `close`."""

    def __init__(self, link: Link, interest: Interest) -> None:
        self._link = link
        self._interest = interest

    @property
    def subject(self) -> str:
        return self._interest.subject

    async def close(self) -> None:
        """No new messages; those that are here already have been handed over on return."""
        await self._link.remove(self._interest)


class Bus:
    """See `open_bus`. Belongs to one event loop.

    `watch` tells whether that loop was late. `num_expired` counts what perishable subscriptions dropped.
    """

    def __init__(self, settings: BusSettings, name: str, watch: LoopWatch) -> None:
        self.watch = watch
        self.num_expired = 0
        self._link = Link(settings, name)
        self._inbox_prefix = settings.inbox_prefix
        self._inbox = self.new_inbox()
        self._answers: dict[str, asyncio.Future[Delivery]] = {}
        self._settled_term = watch.term
        self._late = asyncio.Event()

    @property
    def peer(self) -> str:
        """The servers by host and port."""
        return self._link.peer

    @property
    def is_connected(self) -> bool:
        return self._link.is_connected

    @property
    def max_payload_bytes(self) -> int:
        """The most that one message may carry, headers included; as the server last said."""
        return self._link.max_payload_bytes

    @property
    def num_dropped(self) -> int:
        """Messages lost because a subscription's buffer was full."""
        return self._link.num_dropped

    @property
    def num_connects(self) -> int:
        return self._link.num_connects

    def new_inbox(self) -> str:
        """A reply subject of one's own; tokens may be appended."""
        return f"{self._inbox_prefix}.{new_id()}"

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """`listener` is called at each loss and return of the connection; the result takes it off again."""
        return self._link.add_listener(listener)

    async def wait_connected(self, timeout_s: float) -> None:
        """
        Raises:
            Disconnected: still none after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._link.wait_connected()
        except TimeoutError as error:
            raise Disconnected(peer=self.peer) from error

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends, without waiting for anybody.

        Raises:
            Disconnected: there is no connection now.
            PayloadTooLarge: with its headers over `max_payload_bytes`.
        """
        num_bytes = len(payload) + _header_bytes(headers)
        if num_bytes > self.max_payload_bytes:
            raise PayloadTooLarge(num_bytes=num_bytes, limit_bytes=self.max_payload_bytes)
        await self._link.connection.publish(subject, payload, reply, dict(headers) if headers else None)

    async def request(
        self, subject: str, payload: bytes, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The first answer to `payload`. Raises as `exchange`."""
        return (await self.exchange(subject, payload, timeout_s, headers)).payload

    async def exchange(
        self, subject: str, payload: bytes, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Delivery:
        """The first answer to `payload`, with its headers.

        Raises:
            NoResponder: nobody listens; known at once.
            DeadlineExceeded: no answer within `timeout_s`.
            Disconnected: no connection, or it was lost meanwhile: the request may have been handled.
            PayloadTooLarge: as `publish`.
        """
        with _Answer(self._answers) as (token, answer):
            try:
                async with asyncio.timeout(timeout_s):
                    await self.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
                    delivery = await answer
            except TimeoutError as error:
                raise DeadlineExceeded(what=f"a request to {subject}", limit_s=timeout_s) from error
        if delivery.is_no_responder:
            raise NoResponder(subject=subject)
        return delivery

    async def has_responder(self, subject: str, timeout_s: float) -> bool:
        """Whether anybody listens on `subject`. Handlers of a `Bus` never see the probe.

        Not for subjects of a stream, which would store it. Raises as `flush`.
        """
        return bool(await self.find_responders([subject], timeout_s))

    async def find_responders(self, subjects: Sequence[str], timeout_s: float) -> list[str]:
        """Those of `subjects` that somebody listens on, found by one round trip. As `has_responder`."""
        with ExitStack() as stack:
            answers = {}
            for subject in subjects:
                token, answers[subject] = stack.enter_context(_Answer(self._answers))
                reply = f"{self._inbox}.{token}"
                await self.publish(subject, b"", reply=reply, headers={PROBE_HEADER: "1"})
            await self.flush(timeout_s)
            return [
                subject
                for subject, answer in answers.items()
                if not (answer.done() and answer.result().is_no_responder)
            ]

    async def flush(self, timeout_s: float) -> None:
        """Returns when the server has handled everything sent before.

        Raises:
            Disconnected, DeadlineExceeded
        """
        await self._link.connection.ping(timeout_s)

    async def subscribe(
        self, subject: str, handler: Handler, *, queue: str = "", perishable: bool = False
    ) -> Subscription:
        """As `subscribe_all`, for one wish."""
        return (await self.subscribe_all([Wish(subject, handler, queue, perishable)]))[0]

    async def subscribe_all(self, wishes: Sequence[Wish]) -> list[Subscription]:
        """All live on return, by one round trip with the server.

        Raises:
            Disconnected, DeadlineExceeded: the server could not be told; nothing is subscribed.
        """
        interests = [self._interest(wish) for wish in wishes]
        await self._link.add(interests)
        return [Subscription(self._link, interest) for interest in interests]

    def _interest(self, wish: Wish) -> Interest:
        def hand_over(subject: str, reply: str, payload: bytes, headers: Mapping[str, str]) -> None:
            term = self.watch.check()
            if wish.perishable and term != self._settled_term:
                self.num_expired += 1
            elif PROBE_HEADER not in headers:
                _hand_over(wish.handler, Delivery(subject, payload, reply, headers, term, self))

        return Interest(wish.subject, wish.queue, hand_over)

    def _on_answer(self, subject: str, reply: str, payload: bytes, headers: Mapping[str, str]) -> None:
        answer = self._answers.get(subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(Delivery(subject, payload, reply, headers, self.watch.check(), self))

    def _on_link(self, is_connected: bool) -> None:
        """Requests in flight end with the connection: their answers cannot come any more."""
        for answer in () if is_connected else self._answers.values():
            if not answer.done():
                answer.set_exception(Disconnected(peer=self.peer))

    async def open(self) -> None:
        """See `open_bus`."""
        self.watch.add_listener(self._late.set)
        self._link.add_listener(self._on_link)
        await self._link.open(Interest(f"{self._inbox}.*", "", self._on_answer))

    async def keep_connected(self) -> None:
        await self._link.keep()

    async def settle(self) -> None:
        """After each lateness: one round trip, then messages are fresh again. Without end."""
        while True:
            await self._late.wait()
            self._late.clear()
            while self._settled_term != self.watch.term:
                term = self.watch.term
                await self._link.wait_connected()
                if await self._link.try_ping():
                    self._settled_term = term
                else:
                    await asyncio.sleep(UNSETTLED_PAUSE_S)

    async def close(self) -> None:
        """What was sent is with the server on return, unless the connection is gone."""
        await self._link.try_ping()
        await self._link.close()


@asynccontextmanager
async def open_bus(settings: BusSettings, name: str) -> AsyncIterator[Bus]:
    """A bus that is connected, and connects again for ever; `name` shows in the server's list of clients.

    Raises:
        Disconnected: no server within `connect_timeout_s`.
        InvalidSetting: the URL is wrong, or its server refuses us or does not speak NATS.
    """
    with watch_loop(settings.late_after_s) as watch:
        bus = Bus(settings, name, watch)
        await bus.open()
        try:
            async with open_tasks() as tasks:
                companions = [
                    tasks.create_task(bus.keep_connected(), name="bus-connection"),
                    tasks.create_task(bus.settle(), name="bus-settling"),
                ]
                try:
                    yield bus
                finally:
                    for companion in companions:
                        companion.cancel()
        finally:
            await bus.close()


class _Answer:
    """A place for one answer, under a fresh token, for the time of the body."""

    def __init__(self, answers: dict[str, asyncio.Future[Delivery]]) -> None:
        self._answers = answers
        self._token = new_id()

    def __enter__(self) -> tuple[str, asyncio.Future[Delivery]]:
        answer = self._answers[self._token] = asyncio.get_running_loop().create_future()
        return self._token, answer

    def __exit__(self, *exc_info: object) -> None:
        answer = self._answers.pop(self._token)
        if answer.done() and not answer.cancelled():
            answer.exception()  # looked at, so that the loop does not report one that nobody waited for


def _hand_over(handler: Handler, delivery: Delivery) -> None:
    try:
        handler(delivery)
    except Exception:  # the border: one bad message must not end those after it
        log.exception("the handler of %s failed", delivery.subject)


def _header_bytes(headers: Mapping[str, str] | None) -> int:
    """The size of `headers` on the wire, at most: the server counts them as payload."""
    if not headers:
        return 0
    return 14 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
