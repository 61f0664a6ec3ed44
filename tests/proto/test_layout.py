"""What a pool's shape says of its sizes, and which two pools KV can move between."""

import pytest

from proto.errors import LayoutMismatch
from proto.layout import PoolLayout, check_convertible, tile_places
from tests.proto.pool_layouts import make_pool


def test_sizes_follow_from_the_shape() -> None:
    pool = make_pool()
    assert (pool.layer_bytes, pool.head_bytes, pool.block_bytes, pool.pool_bytes) == (32, 192, 768, 6144)
    larger = make_pool(block_size=64)
    assert (larger.tile_size, larger.tile_bytes, larger.block_bytes) == (16, 3072, 4 * 3072)
    assert [tile_places(size) for size in (1, 8, 12, 16, 24, 48)] == [1, 8, 4, 16, 8, 16]


WHOLE = [make_pool()]


@pytest.mark.parametrize(
    "theirs",
    [
        [make_pool(address=0, num_blocks=3, device="cuda:0")],
        [make_pool(num_layers=4), make_pool(first_layer=4, num_layers=2)],
        [make_pool(num_heads=1), make_pool(first_head=1, num_heads=3)],
        [make_pool(first_head=head // 2, num_heads=1) for head in range(8)],
        [make_pool(num_layers=2, num_heads=4), make_pool(first_layer=2, num_layers=4, num_heads=4), *WHOLE],
    ],
)
def test_workers_that_hold_the_same_kv_can_exchange_it_however_it_lies(theirs: list[PoolLayout]) -> None:
    check_convertible(WHOLE, theirs, "w1", "w2")
    check_convertible(theirs, WHOLE, "w2", "w1")


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ([make_pool(head_dim=3)], "head_dim 2 is not 3"),
        ([make_pool(dtype="float16")], "dtype bfloat16 is not float16"),
        ([make_pool(item_bytes=4)], "item_bytes 2 is not 4"),
        ([make_pool(group=1)], "group 0 is not 1"),
        ([make_pool(block_size=16)], "block_size 4 is not 16"),
        (
            [make_pool(num_layers=3), make_pool(first_layer=3, num_layers=3, head_dim=4)],
            "head_dim 2 is not 4",
        ),
        ([make_pool(num_layers=5)], "no rank of theirs holds layers 5 to 5, heads 0 to 3"),
        ([make_pool(num_layers=9)], "no rank of ours holds layers 6 to 8, heads 0 to 3"),
        (
            [make_pool(num_heads=1), make_pool(first_head=2, num_heads=2)],
            "theirs holds layers 0 to 5, heads 1 to 1",
        ),
    ],
)
def test_workers_whose_kv_cannot_be_converted_are_refused_by_what_differs(
    theirs: list[PoolLayout], reason: str
) -> None:
    with pytest.raises(LayoutMismatch) as refused:
        check_convertible(WHOLE, theirs, "w1", "w2")
    assert (refused.value.values["source"], refused.value.values["target"]) == ("w1", "w2")
    assert reason in str(refused.value.values["reason"])


def test_a_card_of_any_size_is_looked_at_in_no_time() -> None:
    with pytest.raises(LayoutMismatch):
        check_convertible(WHOLE, [make_pool(num_layers=2**62, num_heads=2**62)], "w1", "w2")
