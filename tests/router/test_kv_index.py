"""The index against a naive twin: a dict of sets."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.blockhash import block_hashes, block_salt
from proto.errors import InvalidRequest
from proto.events import BlocksRemoved, BlocksStored, KvEvent, pack_hashes
from proto.tokens import pack_tokens
from router.kv_index import KvIndex, block_keys
from router.slots import Slots
from tests.router.reaches import reach_of

WORKERS = [f"w{number}" for number in range(5)]
HASHES = [bytes([number]) * 16 for number in range(1, 25)]
MANY = 3000

hash_lists = st.lists(st.sampled_from(HASHES), max_size=12)
steps = st.tuples(
    st.sampled_from(["stored", "removed", "forget", "gone", "sweep"]), st.sampled_from(WORKERS), hash_lists
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
        elif verb != "sweep":
            held.clear()

    def match(self, hashes: list[bytes]) -> dict[str, int]:
        depths = {}
        for worker, held in self.held.items():
            depth = 0
            while depth < len(hashes) and hashes[depth] in held:
                depth += 1
            if depth:
                depths[worker] = depth
        return depths


class Scene:
    def __init__(self) -> None:
        self.slots = Slots()
        self.index = KvIndex(self.slots)

    def take(self, verb: str, worker: str, hashes: list[bytes]) -> None:
        packed = pack_hashes(hashes)
        if verb == "stored":
            self.index.apply(worker, BlocksStored(packed))
        elif verb == "removed":
            self.index.apply(worker, BlocksRemoved(packed))
        elif verb == "sweep":
            self.index.sweep(len(hashes) * 100)
        else:
            self.index.forget(worker)
            if verb == "gone":
                self.slots.give_back(worker)

    def match(self, hashes: list[bytes]) -> dict[str, int]:
        return reach_of(self.index.match(block_keys(pack_hashes(hashes))), self.slots)

    def sweep_all(self) -> int:
        """How many rounds it took."""
        rounds = 1
        while self.index.sweep(1000):
            rounds += 1
        return rounds


@given(st.lists(steps, max_size=40), st.lists(hash_lists, min_size=1, max_size=5))
def test_the_index_says_what_its_naive_twin_says(
    history: list[tuple[str, str, list[bytes]]], prompts: list[list[bytes]]
) -> None:
    scene, naive = Scene(), NaiveIndex()
    index = scene.index
    for verb, worker, hashes in history:
        scene.take(verb, worker, hashes)
        naive.take(verb, worker, hashes)
        assert index.num_blocks == len(set().union(*naive.held.values()))
    for prompt in prompts:
        assert scene.match(prompt) == naive.match(prompt)
    for worker in WORKERS:
        held = naive.held.get(worker, set())
        assert index.num_blocks_of(worker) == len(held)
        assert set(index.keys_of(worker)) == set(block_keys(pack_hashes(sorted(held))).tolist())
        of_all = index.which_of(worker, block_keys(pack_hashes(HASHES)))
        assert of_all.tolist() == [hash_ in held for hash_ in HASHES]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_long_prompts_of_thousands_of_workers_with_holes(seed: int) -> None:
    """Chains that branch, of which each worker holds a part, less some blocks from the middle."""
    draw = random.Random(seed)
    scene, naive = Scene(), NaiveIndex()
    salts = [block_salt("digest", tenant) for tenant in ("", "tenant")]
    trunk = [draw.randrange(100) for _ in range(16 * 200)]
    prompts = []
    for _ in range(4):
        tokens = trunk[: 16 * draw.randrange(1, 200)] + [draw.randrange(100) for _ in range(16 * 100)]
        prompts.append(block_hashes(pack_tokens(tokens), 16, draw.choice(salts)))
    for number in draw.sample(range(MANY), 40):
        path = draw.choice(prompts)
        for verb, hashes in (
            ("stored", path[: draw.randrange(1, len(path))]),
            ("removed", draw.sample(path, draw.choice([0, 0, 1, 5]))),
        ):
            scene.take(verb, f"w{number}", hashes)
            naive.take(verb, f"w{number}", hashes)
    for prompt in prompts:
        assert scene.match(prompt) == naive.match(prompt)


def test_thousands_of_workers_hold_one_prompt_to_different_depths() -> None:
    scene = Scene()
    prompt = block_hashes(pack_tokens(range(16 * 200)), 16, block_salt("digest"))
    depths = {f"w{number}": 1 + number * 7 % 40 * 5 for number in range(MANY)}
    for worker, depth in depths.items():
        scene.take("stored", worker, prompt[:depth])
    assert scene.match(prompt) == depths


def test_tenants_and_block_sizes_have_nothing_in_common() -> None:
    scene = Scene()
    tokens = pack_tokens(range(256))
    ours = block_hashes(tokens, 16, block_salt("digest"))
    scene.take("stored", "w0", ours)
    assert scene.match(ours) == {"w0": 16}
    assert scene.match(block_hashes(tokens, 16, block_salt("digest", "tenant"))) == {}
    assert scene.match(block_hashes(tokens, 32, block_salt("digest"))) == {}


def test_a_block_evicted_from_the_middle_ends_the_prefix_there() -> None:
    scene = Scene()
    scene.take("stored", "w0", HASHES[:6])
    scene.take("removed", "w0", HASHES[2:3])
    assert scene.match(HASHES[:6]) == {"w0": 2}
    scene.take("stored", "w0", HASHES[2:3])
    assert scene.match(HASHES[:6]) == {"w0": 6}


def test_a_prompt_under_a_block_matches_nobody() -> None:
    scene = Scene()
    scene.take("stored", "w0", HASHES)
    assert scene.match([]) == {}


def test_events_applied_at_once_are_applied_in_order() -> None:
    scene, naive = Scene(), NaiveIndex()
    events: list[KvEvent] = []
    for kind, verb, hashes in (
        (BlocksStored, "stored", HASHES[:4]),
        (BlocksStored, "stored", HASHES[3:9]),
        (BlocksRemoved, "removed", HASHES[2:5]),
        (BlocksStored, "stored", HASHES[2:4]),
    ):
        events.append(kind(pack_hashes(hashes)))
        naive.take(verb, "w0", hashes)
    scene.index.apply_all("w0", events)
    assert scene.index.num_blocks_of("w0") == len(naive.held["w0"])
    assert scene.match(HASHES) == naive.match(HASHES)


def test_memory_levels_off_under_a_million_prefixes() -> None:
    index = KvIndex(Slots())
    recent: list[bytes] = []
    sizes = []
    for number in range(250):
        fresh = random.Random(number).randbytes(16 * 4000)
        index.apply("w0", BlocksStored(fresh))
        recent.append(fresh)
        if len(recent) > 3:
            index.apply("w0", BlocksRemoved(recent.pop(0)))
        sizes.append(index.num_bytes)
    assert index.num_blocks == index.num_blocks_of("w0") == 12_000
    assert sizes[20] == sizes[-1] < 700_000


def test_a_forgotten_worker_matches_nothing_while_its_blocks_are_dropped_piece_by_piece() -> None:
    scene = Scene()
    index = scene.index
    blocks = [random.Random(number).randbytes(16) for number in range(5000)]
    scene.take("stored", "w0", blocks)
    scene.take("stored", "w1", blocks[:3])
    index.forget("w0")
    assert index.num_blocks == 3
    assert scene.match(blocks) == {"w1": 3}
    scene.take("stored", "w0", blocks[:2])
    assert scene.sweep_all() > 4
    assert scene.match(blocks) == {"w0": 2, "w1": 3}
    assert index.num_blocks == 3
    scene.take("removed", "w1", blocks)
    scene.take("removed", "w0", blocks)
    assert index.num_blocks == 0


def test_the_slot_of_a_worker_that_is_gone_serves_the_next_one() -> None:
    scene = Scene()
    for number in range(500):
        scene.take("stored", f"life-{number}", HASHES)
        scene.take("stored", "w0", HASHES[:3])
        scene.take("gone", f"life-{number}", [])
        assert scene.match(HASHES) == {"w0": 3}
    assert scene.slots.size == 2


def test_a_scan_misses_nothing_that_moves_while_it_is_left() -> None:
    index = KvIndex(Slots())
    mine = random.Random(0).randbytes(16 * 600)
    index.apply("w0", BlocksStored(mine))
    scan = index.keys_of("w0")
    found = {next(scan) for _ in range(10)}
    index.apply("w1", BlocksStored(random.Random(1).randbytes(16 * 200_000)))
    assert found | set(scan) == set(block_keys(mine).tolist())


def test_a_worker_with_a_million_blocks_is_forgotten_without_a_stall() -> None:
    index = KvIndex(Slots())
    for number in range(32):
        index.apply("w0", BlocksStored(random.Random(number).randbytes(16 * 32_768)))
    assert index.num_blocks == 1_048_576
    index.forget("w0")
    assert index.num_blocks_of("w0") == index.num_blocks == 0
    assert not any(later and not sooner for sooner, later in pairwise(index.sweep(65_536) for _ in range(50)))
    assert not index.sweep(1)


def test_half_a_hash_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="whole number"):
        block_keys(b"x" * 24)


def test_no_key_is_zero() -> None:
    assert np.all(block_keys(bytes(32)) < 0)
