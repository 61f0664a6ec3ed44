"""What a pool's shape says of its sizes, and which two pools KV can move between."""

import pytest

from proto.errors import LayoutMismatch
from proto.layout import check_convertible
from tests.proto.pool_layouts import make_pool


def test_sizes_follow_from_the_shape() -> None:
    pool = make_pool()
    assert (pool.head_bytes, pool.layer_bytes, pool.block_bytes, pool.pool_bytes) == (16, 128, 768, 6144)


def test_pools_that_hold_other_layers_heads_and_blocks_can_be_converted() -> None:
    other = make_pool(
        address=0, num_blocks=3, first_layer=2, num_layers=1, first_head=1, num_heads=1, device="cuda:0"
    )
    check_convertible(make_pool(), other, "w1", "w2")
    check_convertible(other, make_pool(), "w2", "w1")


@pytest.mark.parametrize(
    ("field", "value"),
    [("block_size", 8), ("head_dim", 3), ("dtype", "float16"), ("item_bytes", 4), ("group", 1)],
)
def test_pools_that_cannot_be_converted_are_refused_by_the_field_that_differs(
    field: str, value: int | str
) -> None:
    with pytest.raises(LayoutMismatch) as refused:
        check_convertible(make_pool(), make_pool(**{field: value}), "w1", "w2")
    assert refused.value.values == {
        "source": "w1",
        "target": "w2",
        "reason": f"{field} {getattr(make_pool(), field)} is not {value}",
    }
