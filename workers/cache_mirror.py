"""A prefix cache as its worker has told it: numbered events, and snapshots that are true for a number.

The mirror follows what was published, not the engine, so that a snapshot and the events after it fit together
and the engine is not asked for either.
"""

import time
from collections import OrderedDict

import msgspec

from proto.errors import InvalidRequest
from proto.events import BlocksStored, KvEvent, KvEvents, SnapshotPage, pack_hashes, unpack_hashes

PAGE_HASHES = 4096  # a few milliseconds for a router that takes the page, and as little here
SNAPSHOT_KEEP_S = 30.0
MAX_SNAPSHOTS = 8


class _Kept(msgspec.Struct, frozen=True):
    """A snapshot that routers are reading. Its pages are packed when they are asked for."""

    taken_s: float
    hashes: list[bytes]


class CacheMirror:
    """The cache of one incarnation. `number` is that of its last event."""

    def __init__(self, worker: str, incarnation: str, page_hashes: int = PAGE_HASHES) -> None:
        self.number = 0
        self._page_hashes = page_hashes
        self._worker = worker
        self._incarnation = incarnation
        self._held: set[bytes] = set()
        self._snapshots: OrderedDict[int, _Kept] = OrderedDict()

    def tell(self, events: list[KvEvent]) -> KvEvents:
        """Takes the next events; the message that tells them to others."""
        first = self.number + 1
        for event in events:
            hashes = unpack_hashes(event.hashes)
            if isinstance(event, BlocksStored):
                self._held.update(hashes)
            else:
                self._held.difference_update(hashes)
        self.number += len(events)
        return KvEvents(self._worker, self._incarnation, first, events)

    def snapshot(self, page: int, number: int) -> SnapshotPage:
        """A page of the cache as it was after event `number`; page 0 takes it anew.

        Raises:
            InvalidRequest: that snapshot is no longer kept, or has no such page.
        """
        if page == 0:
            number = self._take_snapshot()
        kept = self._snapshots.get(number)
        if kept is None:
            raise InvalidRequest(field="number", reason=f"no snapshot of event {number} is kept")
        start, num_pages = page * self._page_hashes, max(1, -(-len(kept.hashes) // self._page_hashes))
        if not 0 <= page < num_pages:
            raise InvalidRequest(field="page", reason=f"there are {num_pages} pages")
        hashes = pack_hashes(kept.hashes[start : start + self._page_hashes])
        return SnapshotPage(self._worker, self._incarnation, number, page, page == num_pages - 1, hashes)

    def _take_snapshot(self) -> int:
        """Its number; one that many ask for at once is made once."""
        if self.number in self._snapshots:
            return self.number
        now_s = time.monotonic()
        while self._snapshots and (
            len(self._snapshots) >= MAX_SNAPSHOTS
            or next(iter(self._snapshots.values())).taken_s < now_s - SNAPSHOT_KEEP_S
        ):
            self._snapshots.popitem(last=False)
        self._snapshots[self.number] = _Kept(now_s, list(self._held))
        return self.number
