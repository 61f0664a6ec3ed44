"""A prefix cache as others see it: numbered events, ten messages a second at most, and snapshots.

Snapshots are served from a mirror kept here, so that the engine is not asked.
"""

import asyncio
import logging
import time
from collections import OrderedDict

from proto import subjects
from proto.blockhash import HASH_BYTES
from proto.codec import encode
from proto.errors import Disconnected, InvalidRequest
from proto.events import BlocksStored, KvEvent, KvEvents, SnapshotPage, unpack_hashes
from services.bus import Bus
from workers.engine.engine import Engine

INTERVAL_S = 0.1
PAGE_HASHES = 65_536
MAX_EVENTS = 1_000
SNAPSHOT_KEEP_S = 30.0
MAX_SNAPSHOTS = 8

log = logging.getLogger(__name__)


class EventPublisher:
    """Belongs to the event loop. `number` is that of the last event published."""

    def __init__(self, bus: Bus, ns: str, worker: str, incarnation: str, engine: Engine) -> None:
        self._bus = bus
        self._subject = subjects.kv(ns, worker)
        self._worker = worker
        self._incarnation = incarnation
        self._engine = engine
        self._mirror: set[bytes] = set()
        self._snapshots: OrderedDict[int, tuple[float, list[bytes]]] = OrderedDict()
        self._stepped = asyncio.Event()
        self.number = 0

    def note_step(self) -> None:
        """The cache may have changed."""
        self._stepped.set()

    async def run(self) -> None:
        """Publish what is new, for ever."""
        while True:
            await self._stepped.wait()
            self._stepped.clear()
            await self.publish()
            await asyncio.sleep(INTERVAL_S)

    async def publish(self) -> None:
        """Take the engine's events into the mirror and tell the routers; a snapshot heals what is lost."""
        events = self._engine.take_events()
        for start in range(0, len(events), MAX_EVENTS):
            await self._publish_some(events[start : start + MAX_EVENTS])

    async def _publish_some(self, events: list[KvEvent]) -> None:
        first = self.number + 1
        for event in events:
            hashes = unpack_hashes(event.hashes)
            if isinstance(event, BlocksStored):
                self._mirror.update(hashes)
            else:
                self._mirror.difference_update(hashes)
        self.number += len(events)
        message = KvEvents(self._worker, self._incarnation, first, events)
        try:
            await self._bus.publish(self._subject, encode(message))
        except Disconnected as error:
            log.info("events were not published", extra={"reason": str(error)})

    def snapshot(self, page: int, number: int) -> SnapshotPage:
        """A page of the mirror as it was after event `number`; page 0 takes it anew.

        Raises:
            InvalidRequest: that snapshot is no longer kept, or has no such page.
        """
        if page == 0:
            number = self._take_snapshot()
        kept = self._snapshots.get(number)
        if kept is None:
            raise InvalidRequest(field="number", reason=f"no snapshot of event {number} is kept")
        pages = kept[1]
        if not 0 <= page < len(pages):
            raise InvalidRequest(field="page", reason=f"there are {len(pages)} pages")
        return SnapshotPage(
            self._worker, self._incarnation, number, page, page == len(pages) - 1, pages[page]
        )

    def _take_snapshot(self) -> int:
        now_s = time.monotonic()
        while self._snapshots and (
            len(self._snapshots) >= MAX_SNAPSHOTS
            or next(iter(self._snapshots.values()))[0] < now_s - SNAPSHOT_KEEP_S
        ):
            self._snapshots.popitem(last=False)
        whole = b"".join(self._mirror)
        size = PAGE_HASHES * HASH_BYTES
        pages = [whole[start : start + size] for start in range(0, len(whole), size)] or [b""]
        self._snapshots[self.number] = (now_s, pages)
        return self.number
