"""Fetches the snapshots that the event feed wants: one at a time for each worker, a few at once."""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from proto.codec import encode
from proto.control import CONTROL_REPLIES, Snapshot, TakeSnapshot
from proto.errors import Conflict, KvmeshError, from_fault
from proto.events import SnapshotPage
from proto.requests import Refused
from proto.subjects import worker_control
from router.event_feed import EventFeed, Fetch
from services.bus import Bus
from services.metrics import RouterMetrics
from services.tasks import open_tasks

log = logging.getLogger(__name__)


class SnapshotRules(msgspec.Struct, frozen=True):
    """Units: `page_s` seconds that a page may take; `num_at_once` snapshots."""

    page_s: float
    num_at_once: int


class Snapshots:
    """Belongs to one event loop. `wake` after every word that may show that an event is missing."""

    def __init__(
        self, bus: Bus, ns: str, feed: EventFeed, rules: SnapshotRules, metrics: RouterMetrics
    ) -> None:
        self.listeners: list[Callable[[], None]] = []  # called when a snapshot has ended, well or not
        self._metrics = metrics
        self._bus = bus
        self._ns = ns
        self._feed = feed
        self._rules = rules
        self._news = asyncio.Event()
        self._num_running = 0

    def wake(self) -> None:
        self._news.set()

    async def run(self) -> None:
        """Without end. Between fetches it drops, piece by piece, what forgotten workers held."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news.clear()
                for worker in self._feed.due(time.monotonic()):
                    if self._num_running < self._rules.num_at_once:
                        self._num_running += 1
                        fetch = self._feed.begin_fetch(worker)
                        tasks.create_task(self._fetch(fetch), name=f"snapshot-{worker}")
                if self._feed.sweep():
                    await asyncio.sleep(0)
                else:
                    await self._wait_news()

    async def _wait_news(self) -> None:
        """Waits for news, or for the moment when a missing event has had time enough to come."""
        due_s = self._feed.next_due_s() if self._num_running < self._rules.num_at_once else None
        try:
            async with asyncio.timeout(None if due_s is None else max(0.0, due_s - time.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return

    async def _fetch(self, fetch: Fetch) -> None:
        self._metrics.snapshots.inc()
        try:
            await self._take_pages(fetch)
            for _ in self._feed.finish(fetch):
                await asyncio.sleep(0)
        except KvmeshError as error:
            log.info("no snapshot of %s: %s", fetch.worker, error)
            self._feed.fail_fetch(fetch, time.monotonic())
        finally:
            self._num_running -= 1
            self.wake()
            for listener in self.listeners:
                listener()

    async def _take_pages(self, fetch: Fetch) -> None:
        """Asks for the next page before it takes one, so that worker and router work at the same time."""
        async with open_tasks() as asks:
            page = await self._ask(fetch.worker, TakeSnapshot())
            while not page.is_last:
                ask = self._ask(fetch.worker, TakeSnapshot(page.page + 1, page.number))
                asked = asks.create_task(ask, name=f"page-{page.page + 1}-{fetch.worker}")
                await asyncio.sleep(0)
                self._feed.take_page(fetch, page)
                page = await asked
            self._feed.take_page(fetch, page)

    async def _ask(self, worker: str, ask: TakeSnapshot) -> SnapshotPage:
        payload = await self._bus.request(worker_control(self._ns, worker), encode(ask), self._rules.page_s)
        reply = CONTROL_REPLIES.decode(payload)
        if isinstance(reply, Refused):
            raise from_fault(reply.fault)
        if not isinstance(reply, Snapshot):
            raise Conflict(key=f"the snapshot of {worker}")
        return reply.page
