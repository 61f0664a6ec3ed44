"""The index against a naive twin: a dict of sets."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InvalidRequest
from proto.events import BlocksRemoved, BlocksStored, pack_hashes
from router.kv_index import KvIndex, block_keys

WORKERS = [f"w{number}" for number in range(5)]
HASHES = [bytes([number]) * 16 for number in range(1, 25)]

hash_lists = st.lists(st.sampled_from(HASHES), max_size=12)
steps = st.tuples(
    st.sampled_from(["stored", "removed", "replace", "forget"]), st.sampled_from(WORKERS), hash_lists
)


class NaiveIndex:
    def __init__(self) -> None:
        self.held: dict[str, set[bytes]] = {}

    def take(self, verb: str, worker: str, hashes: list[bytes]) -> None:
        held = self.held.setdefault(worker, set())
        if verb == "stored":
            held.update(hashes)
        elif verb == "removed":
            held.difference_update(hashes)
        else:
            self.held[worker] = set(hashes) if verb == "replace" else set()

    def match(self, hashes: list[bytes]) -> dict[str, int]:
        depths = {}
        for worker, held in self.held.items():
            depth = 0
            while depth < len(hashes) and hashes[depth] in held:
                depth += 1
            if depth:
                depths[worker] = depth
        return depths


def take(index: KvIndex, verb: str, worker: str, hashes: list[bytes]) -> None:
    packed = pack_hashes(hashes)
    if verb == "stored":
        index.apply(worker, BlocksStored(packed))
    elif verb == "removed":
        index.apply(worker, BlocksRemoved(packed))
    elif verb == "replace":
        index.apply(worker, BlocksStored(packed))
        index.remove(worker, index.keys_of(worker) - set(block_keys(packed)))
    else:
        index.forget(worker)


@given(st.lists(steps, max_size=40), st.lists(hash_lists, min_size=1, max_size=5))
def test_the_index_says_what_its_naive_twin_says(
    history: list[tuple[str, str, list[bytes]]], prompts: list[list[bytes]]
) -> None:
    index, naive = KvIndex(), NaiveIndex()
    for verb, worker, hashes in history:
        take(index, verb, worker, hashes)
        naive.take(verb, worker, hashes)
    for prompt in prompts:
        assert index.match(block_keys(pack_hashes(prompt))) == naive.match(prompt)
    while index.sweep(3):
        pass
    assert index.num_blocks == len(set().union(*naive.held.values()))
    for worker in WORKERS:
        assert index.num_blocks_of(worker) == len(naive.held.get(worker, ()))
        for key_of in HASHES:
            assert index.has(worker, block_keys(key_of)[0]) == (key_of in naive.held.get(worker, ()))


def test_a_block_evicted_from_the_middle_ends_the_prefix_there() -> None:
    index = KvIndex()
    take(index, "stored", "w0", HASHES[:6])
    take(index, "removed", "w0", HASHES[2:3])
    assert index.match(block_keys(pack_hashes(HASHES[:6]))) == {"w0": 2}


def test_a_prompt_under_a_block_matches_nobody() -> None:
    index = KvIndex()
    take(index, "stored", "w0", HASHES)
    assert index.match([]) == {}


def test_memory_levels_off_under_a_million_prefixes() -> None:
    index = KvIndex()
    recent: list[bytes] = []
    for number in range(1000):
        fresh = random.Random(number).randbytes(16 * 1000)
        index.apply("w0", BlocksStored(fresh))
        recent.append(fresh)
        if len(recent) > 3:
            index.apply("w0", BlocksRemoved(recent.pop(0)))
    assert index.num_blocks == index.num_blocks_of("w0") == 3000


def test_a_forgotten_worker_matches_nothing_while_its_blocks_are_dropped_piece_by_piece() -> None:
    index = KvIndex()
    take(index, "stored", "w0", HASHES)
    take(index, "stored", "w1", HASHES[:3])
    index.forget("w0")
    take(index, "stored", "w0", HASHES[:1])
    for num_left in (3, 2, 1, 0):
        assert index.match(block_keys(pack_hashes(HASHES))) == {"w0": 1, "w1": 3}
        assert index.sweep(7) == (num_left > 0)
    assert index.num_blocks == 3


def test_the_bit_of_a_forgotten_worker_serves_the_next_one() -> None:
    index = KvIndex()
    for number in range(500):
        take(index, "stored", f"life-{number}", HASHES)
        take(index, "stored", "w0", HASHES[:3])
        index.forget(f"life-{number}")
        index.sweep(len(HASHES))
    assert index.match(block_keys(pack_hashes(HASHES))) == {"w0": 3}
    assert max(index._workers) <= 2


def test_half_a_hash_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="whole number"):
        block_keys(b"x" * 24)
