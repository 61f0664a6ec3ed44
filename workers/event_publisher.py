"""A prefix cache as others see it: numbered events, ten messages a second at most, and snapshots.

Snapshots are served from a mirror kept here, so that the engine is not asked.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress

from proto import subjects
from proto.blockhash import HASH_BYTES
from proto.codec import encode
from proto.errors import InvalidRequest, KvmeshError
from proto.events import BlocksStored, KvEvent, KvEvents, SnapshotPage, unpack_hashes
from services.bus import Bus
from workers.engine.engine import Engine

INTERVAL_S = 0.1
LOOK_S = 1.0
PAGE_HASHES = 32_768
MAX_MESSAGE_HASHES = 16_384
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
        """Publish what is new, for ever. Blocks that are evicted without a step show within `LOOK_S`."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stepped.wait()
            self._stepped.clear()
            for events in _in_messages(self._engine.take_events()):
                await self._publish_some(events)
                await asyncio.sleep(INTERVAL_S)

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
        except KvmeshError as error:
            log.debug("events were not published", extra={"reason": str(error)})

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
        """Its number; one that many ask for at once is made once."""
        if self.number in self._snapshots:
            return self.number
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


def _in_messages(events: list[KvEvent]) -> Iterator[list[KvEvent]]:
    """Runs of events, each small enough for a message on any bus; one event has few hashes of its own."""
    run: list[KvEvent] = []
    num_hashes = 0
    for event in events:
        num_hashes += len(event.hashes) // HASH_BYTES
        if run and num_hashes > MAX_MESSAGE_HASHES:
            yield run
            run, num_hashes = [], len(event.hashes) // HASH_BYTES
        run.append(event)
    if run:
        yield run
