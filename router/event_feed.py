"""How the index stays true: numbered events of each worker in order, and a snapshot where one is missing.

```
             in order: applied                  every page came: applied
           ┌────────┐                              and what was held back
           ▼        │    lacks one for a moment                 │
        FOLLOWING ──┴──────────────────────────► FETCHING ──────┤
           ▲                                        │ failed: again after a pause
           └────────────────────────────────────────┴───────────┘
```
An event is lacking when a later one is here, or when a report names a later one. Events that came too early,
or during a fetch, are held back; doubled ones are passed over. The machine knows no clock and no bus.

What concerns a worker's whole cache is done in slices, between which the loop turns.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np

from proto.blockhash import HASH_BYTES
from proto.errors import Conflict, InvalidRequest
from proto.events import BlocksStored, KvEvents, SnapshotPage
from router.kv_index import KvIndex, block_keys
from services.backoff import Backoff

GROUP, TIER = 0, "pool"  # what a prefix hit of today's models is made of
SLICE_BLOCKS = 2048  # few milliseconds in the index


class FeedRules(msgspec.Struct, frozen=True):
    """The bounds of a feed.

    Units: `grace_s` seconds that a missing event may still come by itself; `pause_s` the longest pause of a
    worker between two snapshots that fail; `max_held` batches held back for each worker.
    """

    grace_s: float
    pause_s: float
    max_held: int


class Fetch:
    """A snapshot on its way. Owned by one task; void once its feed has begun another.

    `held` is what its pages named; None where the index believed nothing, so that nothing can be stale.
    """

    def __init__(self, worker: str, held: set[int] | None) -> None:
        self.worker = worker
        self.number = -1
        self.page = 0
        self.held = held


class _Feed:
    """One life of one worker. `applied` is the last event in the index, `known` the last that exists."""

    def __init__(self, incarnation: str, rules: FeedRules) -> None:
        self.incarnation = incarnation
        self.applied = 0
        self.known = 0
        self.is_heard = False
        self.was_whole = False
        self.held_back: dict[int, KvEvents] = {}
        self.fetch: Fetch | None = None
        self.due_s = 0.0
        self.backoff = Backoff(rules.pause_s / 16, rules.pause_s)

    @property
    def is_lacking(self) -> bool:
        return self.applied < self.known


class EventFeed:
    """The feeds of all workers into one index. Who calls has checked that a word is of the present life."""

    def __init__(self, index: KvIndex, rules: FeedRules) -> None:
        self._index = index
        self._rules = rules
        self._feeds: dict[str, _Feed] = {}

    def begin_life(self, worker: str, incarnation: str) -> None:
        """A new incarnation: its cache is empty, its events count from 1."""
        self._index.forget(worker)
        self._feeds[worker] = _Feed(incarnation, self._rules)

    def forget(self, worker: str) -> None:
        self._index.forget(worker)
        self._feeds.pop(worker, None)

    def take_events(self, batch: KvEvents, now_s: float) -> None:
        feed = self._feeds[batch.worker]
        self._learn(feed, batch.last, now_s)
        feed.held_back[batch.first] = batch
        if feed.fetch is None:
            self._apply_held_back(feed)
        if len(feed.held_back) > self._rules.max_held:
            del feed.held_back[min(feed.held_back)]

    def take_report(self, worker: str, last_event: int, now_s: float) -> None:
        """The worker says which event was its last."""
        feed = self._feeds[worker]
        feed.is_heard = True
        self._learn(feed, last_event, now_s)
        feed.was_whole = feed.was_whole or not feed.is_lacking

    def is_whole(self, worker: str) -> bool:
        """Whether all that the worker is known to have said is in the index."""
        feed = self._feeds.get(worker)
        return feed is not None and feed.is_heard and not feed.is_lacking

    def due(self, now_s: float) -> list[str]:
        """Workers whose snapshot is to be fetched now."""
        return [worker for worker, due_s in self._waiting() if due_s <= now_s]

    def next_due_s(self) -> float | None:
        """When the next snapshot is to be fetched; None while nothing is missing."""
        return min((due_s for _, due_s in self._waiting()), default=None)

    def begin_fetch(self, worker: str) -> Fetch:
        """The first question to ask is a plain `TakeSnapshot()`, the next ones name its number."""
        feed = self._feeds[worker]
        feed.fetch = Fetch(worker, set() if self._index.num_blocks_of(worker) else None)
        return feed.fetch

    def take_page(self, fetch: Fetch, page: SnapshotPage) -> None:
        """Takes the next page, which enters the index at once. After the last one comes `finish`.

        Raises:
            Conflict: the fetch is void, the page of another life or snapshot, or older than the index.
        """
        self._check_page(fetch, page)
        fetch.number = page.number
        fetch.page += 1
        if fetch.held is not None:
            fetch.held.update(block_keys(page.hashes).tolist())
        self._index.apply(fetch.worker, BlocksStored(page.hashes))

    def finish(self, fetch: Fetch) -> Iterator[None]:
        """What follows the last page, slice by slice: what no page named goes, what was held back comes.

        Raises:
            Conflict: the fetch is void: meanwhile the worker began another life, or is gone.
        """
        stale: list[int] = []
        if fetch.held is not None:
            believed = iter(self._index.keys_of(fetch.worker))
            while piece := set(islice(believed, SLICE_BLOCKS)):
                stale += piece - fetch.held
                yield
                self._feed_of(fetch)
        for start in range(0, len(stale), SLICE_BLOCKS):
            self._index.remove(fetch.worker, np.array(stale[start : start + SLICE_BLOCKS], np.int64))
            yield
            self._feed_of(fetch)
        feed = self._feed_of(fetch)
        feed.applied, feed.fetch = fetch.number, None
        feed.backoff.reset()
        self._apply_held_back(feed)

    def sweep(self) -> bool:
        """Drops a slice of what forgotten workers held; whether there is more."""
        return self._index.sweep(SLICE_BLOCKS)

    def fail_fetch(self, fetch: Fetch, now_s: float) -> None:
        """The snapshot could not be had; another try after a pause."""
        feed = self._feeds.get(fetch.worker)
        if feed is not None and feed.fetch is fetch:
            feed.fetch = None
            feed.due_s = now_s + feed.backoff.next_s()
            self._apply_held_back(feed)

    def _waiting(self) -> Iterator[tuple[str, float]]:
        for worker, feed in self._feeds.items():
            if feed.is_lacking and feed.fetch is None:
                yield worker, feed.due_s

    def _learn(self, feed: _Feed, last: int, now_s: float) -> None:
        """An event `last` exists. At first sight of a feed nothing can be on its way: no grace."""
        was_lacking = feed.is_lacking
        feed.known = max(feed.known, last)
        if feed.is_lacking and not was_lacking:
            feed.due_s = max(feed.due_s, now_s + (self._rules.grace_s if feed.was_whole else 0.0))

    def _apply_held_back(self, feed: _Feed) -> None:
        """Applies what follows without a hole."""
        for first in sorted(feed.held_back):
            if first > feed.applied + 1:
                break
            batch = feed.held_back.pop(first)
            new = batch.events[feed.applied + 1 - first :]
            ours = [event for event in new if event.group == GROUP and event.tier == TIER]
            self._index.apply_all(batch.worker, ours)
            feed.applied = max(feed.applied, batch.last)
        feed.was_whole = feed.was_whole or not feed.is_lacking

    def _check_page(self, fetch: Fetch, page: SnapshotPage) -> None:
        feed = self._feed_of(fetch)
        is_next = page.page == fetch.page and (fetch.page == 0 or page.number == fetch.number)
        if page.incarnation != feed.incarnation or not is_next or page.number < feed.applied:
            raise Conflict(key=f"the snapshot of {fetch.worker}")

    def _feed_of(self, fetch: Fetch) -> _Feed:
        feed = self._feeds.get(fetch.worker)
        if feed is None or feed.fetch is not fetch:
            raise Conflict(key=f"the feed of {fetch.worker}")
        return feed


def check_events(batch: KvEvents) -> KvEvents:
    """`batch`, when every event in it can be applied.

    Raises:
        InvalidRequest: no number, or hashes cut in two.
    """
    if batch.first < 1 or not batch.events:
        raise InvalidRequest(field="events", reason="events are numbered from 1, and a batch has some")
    if any(len(event.hashes) % HASH_BYTES for event in batch.events):
        raise InvalidRequest(field="hashes", reason="a hash was cut in two")
    return batch
