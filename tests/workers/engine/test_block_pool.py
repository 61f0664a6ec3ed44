"""The block pool and the prefix cache against naive twins."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from proto.events import BlocksRemoved, BlocksStored, unpack_hashes
from workers.engine.block_pool import BlockPool
from workers.engine.prefix_cache import MAX_EVENT_HASHES, PrefixCache

NUM_BLOCKS = 6


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def chain_of(pool: BlockPool, cache: PrefixCache, first: int, length: int) -> list[int]:
    blocks = pool.allocate(length)
    for number, block in enumerate(blocks, first):
        cache.store(key_of(number), block)
    return blocks


class PoolTwin:
    """The pool and its cache as plain lists: who owns what, which idle block is oldest."""

    def __init__(self) -> None:
        self.owners: list[list[int]] = []
        self.idle: list[int] = []
        self.name_of: dict[int, int] = {}
        self.aside: list[int] = []

    def taken(self, blocks: list[int], num_free: int) -> None:
        """`blocks` came out: all that were free first, then the oldest idle ones."""
        evicted = blocks[num_free:]
        assert evicted == self.idle[: len(evicted)]
        assert not set(blocks[:num_free]) & (set(self.idle) | self.active() | set(self.aside))
        self.idle = self.idle[len(evicted) :]
        for block in evicted:
            del self.name_of[block]

    def active(self) -> set[int]:
        return {block for owner in self.owners for block in owner}

    def freed(self, blocks: list[int]) -> None:
        self.idle += [
            block for block in reversed(blocks) if block not in self.active() and block in self.name_of
        ]


@given(st.lists(st.tuples(st.sampled_from("aafssnng"), st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_the_pool_is_its_naive_twin(script: list[tuple[str, int, int]]) -> None:
    cache = PrefixCache(NUM_BLOCKS)
    pool = BlockPool(NUM_BLOCKS, cache)
    twin = PoolTwin()
    for verb, first, second in script:
        if verb == "a" and pool.num_available >= first:
            num_free = min(first, pool.num_available - pool.num_idle)
            blocks = pool.allocate(first)
            twin.taken(blocks, num_free)
            twin.owners.append(blocks)
        elif verb == "f" and twin.owners:
            blocks = twin.owners.pop(first % len(twin.owners))
            pool.free(blocks)
            twin.freed(blocks)
        elif verb == "s":
            blocks = cache.match([key_of(number) for number in range(first, first + 3)])
            pool.share(blocks)
            twin.owners.append(blocks)
            twin.idle = [block for block in twin.idle if block not in blocks]
        elif verb == "n" and twin.owners and (owner := twin.owners[first % len(twin.owners)]):
            block = owner[second % len(owner)]
            if not cache.has(block):
                cache.store(key_of(second), block)
                if second not in twin.name_of.values():
                    twin.name_of[block] = second
        elif verb == "g":
            if twin.aside:
                pool.give_back(twin.aside)
                twin.aside = []
            elif pool.num_available >= first:
                num_free = min(first, pool.num_available - pool.num_idle)
                blocks = pool.set_aside(first)
                twin.taken(blocks, num_free)
                twin.aside = blocks
        pool.check(block for owner in twin.owners for block in owner)
        assert pool.num_idle == len(twin.idle)
        assert pool.num_active == len(twin.active())
        assert pool.num_aside == len(twin.aside)
        assert {block for block in range(NUM_BLOCKS) if cache.has(block)} == set(twin.name_of)


@given(st.lists(st.tuples(st.sampled_from("sssffmt"), st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_the_cache_is_its_naive_twin_and_its_events_replay_to_it(script: list[tuple[str, int, int]]) -> None:
    cache = PrefixCache(NUM_BLOCKS)
    twin: dict[int, int] = {}
    heard: set[bytes] = set()
    for verb, number, block in [*script, ("t", 0, 0)]:
        if verb == "s" and block not in twin.values():
            cache.store(key_of(number), block)
            twin.setdefault(number, block)
        elif verb == "f":
            cache.forget([block])
            twin = {key: value for key, value in twin.items() if value != block}
        elif verb == "m":
            expected: list[int] = []
            while number + len(expected) in twin:
                expected.append(twin[number + len(expected)])
            assert cache.match([key_of(key) for key in range(number, number + 8)]) == expected
        elif verb == "t":
            for event in cache.take_events():
                keys = unpack_hashes(event.hashes)
                if isinstance(event, BlocksStored):
                    assert heard.isdisjoint(keys)
                    heard.update(keys)
                else:
                    assert heard.issuperset(keys)
                    heard.difference_update(keys)
            assert heard == {key_of(key) for key in twin}
        assert len(cache) == len(twin)


def test_a_chain_is_evicted_from_its_end() -> None:
    cache = PrefixCache(4)
    pool = BlockPool(4, cache)
    pool.free(chain_of(pool, cache, 0, 4))
    for left in (3, 2, 1, 0):
        pool.allocate(1)
        assert len(cache.match([key_of(number) for number in range(4)])) == left


def test_what_was_used_last_is_evicted_last() -> None:
    cache = PrefixCache(4)
    pool = BlockPool(4, cache)
    old, new = chain_of(pool, cache, 0, 2), chain_of(pool, cache, 10, 2)
    pool.free(old)
    pool.free(new)
    pool.share(old)
    pool.free(old)
    pool.allocate(2)
    assert cache.match([key_of(0), key_of(1)]) == old
    assert cache.match([key_of(10)]) == []


def test_blocks_freed_together_come_back_side_by_side() -> None:
    pool = BlockPool(8, PrefixCache(8))
    blocks = pool.allocate(5)
    pool.free(blocks)
    assert pool.allocate(5) == blocks == [0, 1, 2, 3, 4]


def test_a_second_copy_is_not_named_and_returns_to_the_free_blocks() -> None:
    cache = PrefixCache(2)
    pool = BlockPool(2, cache)
    first, second = pool.allocate(2)
    cache.store(key_of(0), first)
    cache.store(key_of(0), second)
    pool.free([first])
    pool.free([second])
    assert cache.match([key_of(0)]) == [first]
    assert (pool.num_idle, pool.num_available) == (1, 2)
    assert Counter(type(event) for event in cache.take_events()) == {BlocksStored: 1}


def test_events_of_a_kind_share_a_message_of_bounded_size() -> None:
    cache = PrefixCache(MAX_EVENT_HASHES + 10)
    for number in range(MAX_EVENT_HASHES + 10):
        cache.store(key_of(number), number)
    assert [len(event.hashes) // 16 for event in cache.take_events()] == [MAX_EVENT_HASHES, 10]
    cache.forget([3])
    assert cache.take_events() == [BlocksRemoved(key_of(3))]


def test_what_comes_and_goes_between_two_takes_is_not_told() -> None:
    cache = PrefixCache(1)
    for number in range(1000):
        cache.store(key_of(number), 0)
        cache.forget([0])
    assert cache.take_events() == []
