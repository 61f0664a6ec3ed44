"""The feed keeps the index equal to the worker's cache, whatever happens to the events on their way."""

import pytest

from proto.errors import Conflict, InvalidRequest
from proto.events import BlocksRemoved, BlocksStored, KvEvent, KvEvents, SnapshotPage, pack_hashes
from router.event_feed import EventFeed, FeedRules, check_events
from router.kv_index import KvIndex, block_keys
from router.slots import Slots

RULES = FeedRules(grace_s=0.3, pause_s=2.0, max_held=8)
HASHES = [bytes([number]) * 16 for number in range(1, 12)]


class Publisher:
    """A worker's cache and what it says of it."""

    def __init__(self, incarnation: str = "life-1") -> None:
        self.incarnation = incarnation
        self.cache: set[bytes] = set()
        self.number = 0

    def change(self, hash_: bytes) -> KvEvents:
        event: KvEvent
        if hash_ in self.cache:
            self.cache.remove(hash_)
            event = BlocksRemoved(hash_)
        else:
            self.cache.add(hash_)
            event = BlocksStored(hash_)
        self.number += 1
        return KvEvents("w", self.incarnation, self.number, [event])

    def pages(self, num_pages: int = 2) -> list[SnapshotPage]:
        held = sorted(self.cache)
        cuts = [held[page::num_pages] for page in range(num_pages)]
        return [
            SnapshotPage("w", self.incarnation, self.number, page, page == num_pages - 1, pack_hashes(cut))
            for page, cut in enumerate(cuts)
        ]


def make_feed() -> tuple[KvIndex, EventFeed]:
    index = KvIndex(Slots())
    feed = EventFeed(index, RULES)
    feed.begin_life("w", "life-1")
    return index, feed


def held_by(index: KvIndex) -> set[bytes]:
    is_held = index.which_of("w", block_keys(b"".join(HASHES)))
    return {hash_ for hash_, is_theirs in zip(HASHES, is_held, strict=True) if is_theirs}


def fetch_all(feed: EventFeed, pages: list[SnapshotPage]) -> None:
    fetch = feed.begin_fetch("w")
    for page in pages:
        feed.take_page(fetch, page)
    for _ in feed.finish(fetch):
        assert not feed.is_whole("w")


def test_events_in_order_need_no_snapshot() -> None:
    index, feed = make_feed()
    worker = Publisher()
    for hash_ in HASHES:
        feed.take_events(worker.change(hash_), 0.0)
    feed.take_report("w", worker.number, 0.0)
    assert held_by(index) == worker.cache
    assert feed.is_whole("w")
    assert feed.next_due_s() is None


def test_a_router_that_starts_late_asks_at_once() -> None:
    _, feed = make_feed()
    feed.take_report("w", 500, 10.0)
    assert not feed.is_whole("w")
    assert feed.due(10.0) == ["w"]


def test_a_gap_is_given_a_moment_and_then_a_snapshot() -> None:
    index, feed = make_feed()
    worker = Publisher()
    feed.take_events(worker.change(HASHES[0]), 0.0)
    feed.take_report("w", 1, 0.0)
    worker.change(HASHES[1])
    feed.take_events(worker.change(HASHES[2]), 1.0)
    assert feed.due(1.0) == []
    assert feed.next_due_s() == pytest.approx(1.3)
    assert feed.due(1.3) == ["w"]
    fetch_all(feed, worker.pages())
    assert held_by(index) == worker.cache
    assert feed.next_due_s() is None


def test_events_that_overtook_one_another_heal_without_a_snapshot() -> None:
    index, feed = make_feed()
    worker = Publisher()
    batches = [worker.change(HASHES[number]) for number in (0, 1, 0, 2)]
    feed.take_report("w", 0, 0.0)
    for batch in (batches[0], batches[3], batches[2], batches[1], batches[2]):
        feed.take_events(batch, 0.1)
    assert held_by(index) == worker.cache
    assert feed.next_due_s() is None


def test_a_report_that_names_a_lost_event_shows_the_gap() -> None:
    _, feed = make_feed()
    feed.take_report("w", 0, 0.0)
    feed.take_report("w", 3, 5.0)
    assert feed.due(5.0) == []
    assert feed.due(5.4) == ["w"]


def test_events_that_come_during_a_fetch_are_applied_after_it() -> None:
    index, feed = make_feed()
    worker = Publisher()
    for hash_ in HASHES[:6]:
        worker.change(hash_)
    feed.take_report("w", worker.number, 0.0)
    fetch = feed.begin_fetch("w")
    first, last = worker.pages()
    feed.take_page(fetch, first)
    feed.take_events(worker.change(HASHES[0]), 0.0)
    feed.take_events(worker.change(HASHES[8]), 0.0)
    feed.take_page(fetch, last)
    for _ in feed.finish(fetch):
        feed.take_events(worker.change(HASHES[9]), 0.0)
    assert held_by(index) == worker.cache


def test_what_a_snapshot_does_not_name_is_gone() -> None:
    index, feed = make_feed()
    worker = Publisher()
    feed.take_events(worker.change(HASHES[0]), 0.0)
    worker.change(HASHES[0])
    worker.change(HASHES[1])
    fetch_all(feed, worker.pages(1))
    assert held_by(index) == {HASHES[1]}


def test_a_failed_fetch_is_tried_again_after_a_growing_pause() -> None:
    _, feed = make_feed()
    feed.take_report("w", 5, 0.0)
    pauses = []
    for _ in range(8):
        feed.fail_fetch(feed.begin_fetch("w"), 100.0)
        due_s = feed.next_due_s()
        assert due_s is not None
        pauses.append(due_s - 100.0)
    assert 0 < pauses[0] < 0.2
    assert 1.0 <= pauses[-1] <= 2.0


def test_one_fetch_at_a_time_for_a_worker() -> None:
    _, feed = make_feed()
    feed.take_report("w", 5, 0.0)
    feed.begin_fetch("w")
    assert feed.due(1000.0) == []


def test_a_snapshot_of_another_life_or_another_number_is_refused() -> None:
    index, feed = make_feed()
    worker = Publisher()
    for hash_ in HASHES[:4]:
        worker.change(hash_)
    fetch = feed.begin_fetch("w")
    with pytest.raises(Conflict):
        feed.take_page(fetch, Publisher("life-0").pages()[0])
    feed.take_page(fetch, worker.pages()[0])
    worker.change(HASHES[5])
    with pytest.raises(Conflict):
        feed.take_page(fetch, worker.pages()[1])
    feed.begin_life("w", "life-2")
    with pytest.raises(Conflict):
        feed.take_page(fetch, worker.pages()[1])
    assert held_by(index) == set()


def test_a_snapshot_older_than_the_index_is_refused() -> None:
    index, feed = make_feed()
    worker = Publisher()
    old = worker.pages(1)
    feed.take_events(worker.change(HASHES[0]), 0.0)
    with pytest.raises(Conflict):
        feed.take_page(feed.begin_fetch("w"), old[0])
    assert held_by(index) == worker.cache


def test_a_new_life_begins_with_an_empty_cache() -> None:
    index, feed = make_feed()
    feed.take_events(Publisher().change(HASHES[0]), 0.0)
    feed.begin_life("w", "life-2")
    assert held_by(index) == set()
    feed.take_events(Publisher("life-2").change(HASHES[1]), 0.0)
    assert held_by(index) == {HASHES[1]}


def test_other_tiers_are_no_prefix_hits() -> None:
    index, feed = make_feed()
    feed.take_events(KvEvents("w", "life-1", 1, [BlocksStored(HASHES[0], tier="disk")]), 0.0)
    feed.take_report("w", 1, 0.0)
    assert held_by(index) == set()
    assert feed.is_whole("w")


def test_what_is_held_back_is_bounded() -> None:
    index, feed = make_feed()
    worker = Publisher()
    worker.change(HASHES[0])
    for turn in range(100):
        feed.take_events(worker.change(HASHES[1 + turn % 9]), 0.0)
    fetch_all(feed, worker.pages())
    assert held_by(index) == worker.cache


def test_events_without_number_or_with_half_a_hash_are_refused() -> None:
    for batch in (
        KvEvents("w", "life-1", 0, [BlocksStored(HASHES[0])]),
        KvEvents("w", "life-1", 1, []),
        KvEvents("w", "life-1", 1, [BlocksStored(b"half a hash")]),
    ):
        with pytest.raises(InvalidRequest):
            check_events(batch)
