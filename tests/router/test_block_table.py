"""The block table against a dict, also where many keys crowd into one bucket."""

from itertools import takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from router.block_table import BlockTable, Keys

# The low bits name the bucket: of 40 keys in two buckets most are spilled, until the buckets double.
CROWDED = [-(1 << 62) + (place << 40) + place % 2 for place in range(40)]
verbs = st.tuples(st.sampled_from(["put", "remove"]), st.sets(st.sampled_from(CROWDED), max_size=30))


def as_keys(keys: set[int]) -> Keys:
    return np.array(sorted(keys), np.int64)


@given(st.lists(verbs, max_size=12))
def test_keys_that_crowd_into_one_bucket_are_kept_like_any_other(history: list[tuple[str, set[int]]]) -> None:
    table, twin = BlockTable(), dict[int, int]()
    for step, (verb, keys) in enumerate(history, start=1):
        if verb == "put":
            positions = table.put(as_keys(keys))
            table.set_values(positions, step)
            twin |= dict.fromkeys(keys, step)
        else:
            positions = table.find(as_keys(keys))
            table.remove(positions[positions >= 0])
            twin = {key: value for key, value in twin.items() if key not in keys}
        assert len(table) == len(twin)
        expected = [twin.get(key, 0) for key in sorted(CROWDED)]
        assert table.values[table.find(as_keys(set(CROWDED)))].tolist() == expected
        ahead = list(takewhile(bool, expected))
        assert table.look_up(as_keys(set(CROWDED))).tolist()[: len(ahead) + 1] == [*ahead, 0][: len(expected)]


def test_everything_is_found_after_the_buckets_doubled_many_times() -> None:
    table = BlockTable()
    keys = np.random.default_rng(1).integers(-(1 << 63), 0, 100_000)
    keys[:64] &= ~np.int64(0xFFFF)  # some of them are spilled
    for start in range(0, len(keys), 500):
        piece = keys[start : start + 500]
        positions = table.put(piece)
        table.set_values(positions, np.arange(start, start + 500, dtype=np.int32) + 1)
    assert len(table) == len(keys)
    assert table.values[table.find(keys)].tolist() == list(range(1, len(keys) + 1))
    assert table.look_up(keys).tolist() == list(range(1, len(keys) + 1))
    assert table.find(keys + 1).max() == -1
    assert table.look_up(keys + 1).max() == 0
    assert table.look_up(np.array([keys[5], keys[5] + 1, keys[6]]))[:2].tolist() == [6, 0]


def test_a_million_keys_take_few_bytes() -> None:
    table = BlockTable()
    for seed in range(32):
        table.put(np.random.default_rng(seed).integers(-(1 << 63), 0, 32_768))
    assert len(table) == 1_048_576
    assert table.num_bytes < 48 * len(table)


def test_an_empty_table_finds_nothing() -> None:
    table = BlockTable()
    assert table.find(as_keys(set(CROWDED))).tolist() == [-1] * len(CROWDED)
    assert table.find(as_keys(set())).tolist() == []
    assert table.put(as_keys(set())).tolist() == []
