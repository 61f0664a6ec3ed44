"""A pool of little size, for tests of layouts and of copies between them."""

import msgspec

from proto.layout import PoolLayout


def make_pool(**changes: int | str) -> PoolLayout:
    whole = PoolLayout(
        address=4096,
        num_blocks=8,
        block_size=4,
        first_layer=0,
        num_layers=6,
        first_head=0,
        num_heads=4,
        head_dim=2,
        dtype="bfloat16",
        item_bytes=2,
    )
    return msgspec.structs.replace(whole, **changes)
