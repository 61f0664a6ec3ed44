"""The taking side of a work queue: fetches jobs one at a time, through reconnects and lost streams.

Ownership of a job: the server's until a pull brings it; this taker's buffer until a `fetch` returns it; the
caller's until `done`, `give_back` or `terminate`. One that lay here for `ack_wait_s`, or over a lateness of
the loop, may be another taker's by now and is dropped.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from proto.errors import DeadlineExceeded, Disconnected, Unavailable
from proto.names import new_id
from services.bus import STATUS_HEADER, Delivery, Subscription
from services.jetstream import NS_PER_S
from services.work_queue import Work, WorkQueue

log = logging.getLogger(__name__)

ACK_PREFIX = "$JS.ACK."
NONE_IN_TIME = "408"
TROUBLE_PAUSE_S = 0.1
ANSWER_MARGIN_S = 0.1  # the server ends a pull this much before we do, so that none outlives its fetch


class Taker:
    """See `open_taker`. Fetches the jobs of one subject, one at a time; `fetch` is for one task at a time."""

    def __init__(self, queue: WorkQueue, subject: str) -> None:
        self._queue = queue
        self._bus = queue.bus
        self._subject = subject
        self._next_subject = ""
        self._inbox = queue.bus.new_inbox()
        self._subscription: Subscription | None = None
        self._works: deque[Work] = deque()
        self._pull = ""  # the reply subject of the pull that is out
        self._verdict = ""  # the status that ended it
        self._changed = asyncio.Event()
        self._forget_link: Callable[[], None] | None = None

    async def open(self) -> None:
        """See `open_taker`."""
        await self._ensure()
        self._forget_link = self._bus.add_listener(lambda _: self._changed.set())
        self._subscription = await self._bus.subscribe(f"{self._inbox}.*", self._on_delivery)

    async def close(self) -> None:
        """Cancel: what was fetched and not given back then is redelivered after `ack_wait_s`."""
        if self._forget_link is not None:
            self._forget_link()
        if self._subscription is not None:
            await self._subscription.close()
        while self._works:
            with suppress(Unavailable, DeadlineExceeded):
                await self._works.popleft().give_back()

    async def fetch(self, timeout_s: float) -> Work | None:
        """The next job, None if none came within `timeout_s`; asks again after a reconnect.

        Cancel: a job that comes after all is kept for the next `fetch`, or goes back at the end.

        Raises:
            InvalidSetting: stream or consumer are gone and cannot be made again.
        """
        deadline_s = time.monotonic() + timeout_s
        while (work := self._take_fresh()) is None and (left_s := deadline_s - time.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._ask(left_s)
        return work

    def _take_fresh(self) -> Work | None:
        """The oldest job here that nobody else can have yet; the others are somebody else's by now."""
        while self._works:
            work = self._works.popleft()
            age_s = time.monotonic() - work.taken_s
            if not work.is_expired and age_s < self._queue.settings.ack_wait_s:
                return work
        return None

    async def _ask(self, left_s: float) -> None:
        """One pull; returns when it has ended in any way."""
        self._changed.clear()
        self._pull, self._verdict = f"{self._inbox}.{new_id()}", ""
        expires_s = max(left_s - ANSWER_MARGIN_S, left_s / 2)
        request = b'{"batch": 1, "expires": %d}' % int(expires_s * NS_PER_S)
        try:
            await self._bus.publish(self._next_subject, request, reply=self._pull)
        except Disconnected:
            await self._bus.wait_connected(left_s)
            await asyncio.sleep(TROUBLE_PAUSE_S)  # connected, it may still refuse for what it has unsent
            return
        await self._changed.wait()
        if self._verdict not in (
            "",
            "408",
        ):  # 408: none came in time; all else: consumer or server in trouble
            await self._make_again()

    async def _make_again(self) -> None:
        log.warning("fetching from %s failed with status %s", self._next_subject, self._verdict)
        try:
            await self._ensure()
        except (Unavailable, DeadlineExceeded) as error:
            log.warning("the queue is not back yet: %s", error)
        await asyncio.sleep(TROUBLE_PAUSE_S)  # a status that comes at once must not make a hot loop

    async def _ensure(self) -> None:
        await self._queue.ensure()
        consumer = await self._queue.ensure_consumer(self._subject)
        self._next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._queue.stream}.{consumer}"

    def _on_delivery(self, delivery: Delivery) -> None:
        if delivery.reply.startswith(ACK_PREFIX):
            self._works.append(Work(delivery, self._queue.settings.max_deliveries))
        elif delivery.subject != self._pull:
            return  # the end of an older pull
        else:
            self._verdict = delivery.headers.get(STATUS_HEADER, "")
        self._changed.set()


@asynccontextmanager
async def open_taker(queue: WorkQueue, subject: str) -> AsyncIterator[Taker]:
    """A taker of the jobs on `subject`. At its end, jobs that were fetched and that nobody saw go back.

    Raises:
        InvalidSetting, Disconnected, DeadlineExceeded, NoResponder: as `open_work_queue`.
    """
    taker = Taker(queue, subject)
    try:
        await taker.open()
        yield taker
    finally:
        await taker.close()
