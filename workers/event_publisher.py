"""Tells others what a prefix cache holds: ten messages of events a second at most, and snapshots."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from proto import subjects
from proto.blockhash import HASH_BYTES
from proto.codec import encode
from proto.errors import KvmeshError
from proto.events import KvEvent, SnapshotPage
from services.bus import Bus
from workers.cache_mirror import CacheMirror
from workers.engine.engine import Engine

INTERVAL_S = 0.1
LOOK_S = 1.0
MAX_MESSAGE_HASHES = 2048  # what a router takes in within a millisecond

log = logging.getLogger(__name__)


class EventPublisher:
    """Belongs to the event loop."""

    def __init__(self, bus: Bus, ns: str, worker: str, incarnation: str, engine: Engine) -> None:
        self._bus = bus
        self._subject = subjects.kv(ns, worker)
        self._engine = engine
        self._mirror = CacheMirror(worker, incarnation)
        self._stepped = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def number(self) -> int:
        """That of the last event published."""
        return self._mirror.number

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener()` after each message: the next report should name its last event, lest it be lost."""
        self._listeners.append(listener)

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
        message = self._mirror.tell(events)
        try:
            await self._bus.publish(self._subject, encode(message))
        except KvmeshError as error:
            log.debug("events were not published", extra={"reason": str(error)})
        for listener in self._listeners:
            listener()

    def snapshot(self, page: int, number: int) -> SnapshotPage:
        """As `CacheMirror.snapshot`."""
        return self._mirror.snapshot(page, number)


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
