"""The index is what the workers' caches are, whatever becomes of their words: the router's ears and its feed
on one side, the prefix cache and the mirror that workers publish from on the other, and a bus that loses,
doubles and reorders between them."""

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proto.codec import encode
from proto.errors import Conflict, InvalidRequest
from proto.events import KvEvents
from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from router.event_feed import EventFeed, FeedRules, Fetch
from router.hearing import Hearing
from router.hit_metrics import HitMetrics
from router.kv_index import KvIndex, block_keys
from router.lives import SILENT_S, Lives
from router.predictions import Predictions
from router.slots import Slots
from router.workers_view import WorkersView
from services.bus import Bus, BusSettings, Delivery
from services.loop_watch import LoopWatch
from services.metrics import Metrics, RouterMetrics
from tests.router.reaches import reach_of
from workers.cache_mirror import CacheMirror
from workers.engine.prefix_cache import PrefixCache

NUM_BLOCKS = 12
HASHES = [bytes([number]) * 16 for number in range(1, 41)]
WORKERS = ["w0", "w1"]

workers = st.sampled_from(WORKERS)
hash_lists = st.lists(st.sampled_from(HASHES), min_size=1, max_size=8)


def keys_of(hashes: set[bytes]) -> set[int]:
    return set(block_keys(b"".join(hashes)).tolist())


class Cache:
    """One life of a worker's cache: the real one, its mirror, and the naive truth, oldest first."""

    def __init__(self, worker: str, life: int) -> None:
        self.worker = worker
        self.incarnation = f"{worker}-{life}"
        self.life = life
        self.truth: dict[bytes, int] = {}
        self.mirror = CacheMirror(worker, self.incarnation, page_hashes=3)
        self._cache = PrefixCache(NUM_BLOCKS)
        self._free = list(range(NUM_BLOCKS))

    def store(self, hashes: list[bytes]) -> None:
        for key in hashes:
            if key in self.truth:
                continue
            if not self._free:
                self.evict(1)
            block = self._free.pop()
            self._cache.store(key, block)
            self.truth[key] = block

    def evict(self, num_blocks: int) -> None:
        for key in list(self.truth)[:num_blocks]:
            block = self.truth.pop(key)
            self._cache.forget([block])
            self._free.append(block)

    def tell(self) -> KvEvents | None:
        events = self._cache.take_events()
        return self.mirror.tell(events) if events else None

    def report(self) -> LoadReport:
        last = self.mirror.number
        return LoadReport(
            self.worker, "m", self.incarnation, 1, Role.DECODE, WorkerState.READY, last_event=last
        )


class Truth(RuleBasedStateMachine):
    """Every message may be lost, doubled or overtaken; pages of a snapshot come between all else."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.lives, self.slots = Lives(), Slots()
        self.index = KvIndex(self.slots)
        self.feed = EventFeed(self.index, FeedRules(grace_s=0.3, pause_s=2.0, max_held=4))
        view = WorkersView(self.lives, self.slots, lambda _: True)
        promises = Predictions(10.0, 100, self.slots)
        metrics = Metrics("router", "r")
        hits = HitMetrics(metrics, RouterMetrics(metrics))
        self.hearing = Hearing(
            "r", self.slots, self.lives, view, self.index, self.feed, promises, hits, lambda: self.now_s
        )
        self.bus = Bus(BusSettings(), "test", LoopWatch(1.0))
        self.caches = {worker: Cache(worker, 0) for worker in WORKERS}
        self.on_the_way: list[KvEvents | LoadReport] = []
        self.fetches: dict[str, Fetch] = {}
        self.finishing: dict[str, Iterator[None]] = {}
        self.heard: dict[str, int] = {}  # by incarnation: the last event that the router knows to exist

    @rule(worker=workers, hashes=hash_lists)
    def store(self, worker: str, hashes: list[bytes]) -> None:
        self.caches[worker].store(hashes)
        self.tell(worker)

    @rule(worker=workers, num_blocks=st.integers(1, NUM_BLOCKS))
    def evict(self, worker: str, num_blocks: int) -> None:
        self.caches[worker].evict(num_blocks)
        self.tell(worker)

    @rule(worker=workers)
    def storm(self, worker: str) -> None:
        """The whole cache is replaced, more than once, in one message."""
        for start in range(0, len(HASHES), NUM_BLOCKS):
            self.caches[worker].store(HASHES[start : start + NUM_BLOCKS])
        self.tell(worker)

    def tell(self, worker: str) -> None:
        message = self.caches[worker].tell()
        if message is not None:
            self.on_the_way.append(message)

    @rule(worker=workers)
    def report(self, worker: str) -> None:
        self.on_the_way.append(self.caches[worker].report())

    @rule(worker=workers)
    def restart(self, worker: str) -> None:
        self.caches[worker] = Cache(worker, self.caches[worker].life + 1)

    @rule(data=st.data(), is_doubled=st.booleans())
    def arrive(self, data: st.DataObject, is_doubled: bool) -> None:
        """Any message that is on the way, not the oldest alone."""
        if self.on_the_way:
            place = data.draw(st.integers(0, len(self.on_the_way) - 1))
            self.hear(self.on_the_way[place] if is_doubled else self.on_the_way.pop(place))

    @rule()
    def all_arrive_in_order(self) -> None:
        messages, self.on_the_way = self.on_the_way, []
        for message in messages:
            self.hear(message)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if self.on_the_way:
            self.on_the_way.pop(data.draw(st.integers(0, len(self.on_the_way) - 1)))

    def hear(self, message: KvEvents | LoadReport) -> None:
        last = message.last_event if isinstance(message, LoadReport) else message.last
        self.heard[message.incarnation] = max(last, self.heard.get(message.incarnation, 0))
        if isinstance(message, LoadReport):
            self.hearing.hear_beat(message.worker, message)
        else:
            self.hearing.hear_events(Delivery("", encode(message), "", {}, 0, self.bus))

    @rule()
    def begin_fetches(self) -> None:
        for worker in self.feed.due(self.now_s + 100.0):
            self.fetches[worker] = self.feed.begin_fetch(worker)
            self.finishing.pop(worker, None)

    @rule(worker=workers)
    def fetch_on(self, worker: str) -> None:
        """A page of the snapshot, or a slice of what follows the last one."""
        fetch, finishing = self.fetches.get(worker), self.finishing.get(worker)
        if fetch is None:
            return
        try:
            if finishing is None:
                page = self.caches[worker].mirror.snapshot(fetch.page, fetch.number)
                self.feed.take_page(fetch, page)
                if page.is_last:
                    self.finishing[worker] = self.feed.finish(fetch)
            elif next(finishing, "whole") == "whole":
                self.end_fetch(worker)
        except (Conflict, InvalidRequest):
            self.fail_fetch(worker)

    @rule(worker=workers)
    def fail_fetch(self, worker: str) -> None:
        if worker in self.fetches:
            self.feed.fail_fetch(self.fetches[worker], self.now_s)
            self.end_fetch(worker)

    def end_fetch(self, worker: str) -> None:
        del self.fetches[worker]
        self.finishing.pop(worker, None)

    @rule()
    def sweep(self) -> None:
        self.feed.sweep()

    @invariant()
    def a_feed_is_whole_only_when_the_index_is_the_cache(self) -> None:
        for worker, cache in self.caches.items():
            has_heard_all = self.heard.get(cache.incarnation) == cache.mirror.number
            is_met = self.lives.present(worker) == cache.incarnation
            if is_met and has_heard_all and self.feed.is_whole(worker):
                self.check(worker)

    def check(self, worker: str) -> None:
        assert set(self.index.keys_of(worker)) == keys_of(set(self.caches[worker].truth))

    def teardown(self) -> None:
        """Whatever was lost: one report of each worker and one snapshot lead to the truth."""
        self.on_the_way.clear()
        self.now_s += SILENT_S
        for worker in WORKERS:
            self.fail_fetch(worker)
            self.hear(self.caches[worker].report())
        self.begin_fetches()
        while self.fetches:
            for worker in list(self.fetches):
                self.fetch_on(worker)
        while self.feed.sweep():
            pass
        for worker, cache in self.caches.items():
            assert self.feed.is_whole(worker)
            self.check(worker)
            reach = reach_of(self.index.match(block_keys(b"".join(cache.truth))), self.slots)
            assert reach.get(worker, 0) == len(cache.truth)
        held = [keys_of(set(cache.truth)) for cache in self.caches.values()]
        assert self.index.num_blocks == len(set().union(*held))


TestTruth = Truth.TestCase
TestTruth.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
