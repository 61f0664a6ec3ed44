"""How KV lies in a pool, and whether it can go to another.

A pool is one run of memory per rank and kind of layer, block by block, and in a block head by head:

```
[block, tile, kv head, layer, k/v, place, head dim]

block b ─── tile 0 ─┬─ head 0 ─┬─ layer 0 ─┬─ K: place 0 … place 15, each D numbers
                    │          │           └─ V: …
                    │          └─ layer 1 ─── …
                    └─ head 1 ─── …
```

so a block is contiguous, and in a tile so are a run of heads, and a run of layers of a head. A worker of many
ranks has a pool for each, with some of the layers and some of the heads; together they hold all of them, may
share them out unevenly, and hold some more than once. Between two such workers a head's layers move in one
piece, however the heads are shared out. A tile has 16 places, or as many as divide both that and a block: so
blocks of 64 lie in memory as four of 16 do.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import gcd
from typing import Final, NamedTuple

from proto.errors import LayoutMismatch
from proto.struct import WireStruct

MOST_TILE_PLACES: Final = 16


class LayerRange(NamedTuple):
    """A run of layers, by global number."""

    first: int
    num_layers: int

    @property
    def end(self) -> int:
        return self.first + self.num_layers


class HeadRange(NamedTuple):
    """A run of KV heads, by global number."""

    first: int
    num_heads: int

    @property
    def end(self) -> int:
        return self.first + self.num_heads


class PoolLayout(WireStruct, frozen=True):
    """One rank's pool of one group of like layers.

    Units: addresses and sizes in bytes; layers and heads are global numbers within the model.
    """

    address: int
    num_blocks: int
    block_size: int
    first_layer: int
    num_layers: int
    first_head: int
    num_heads: int
    head_dim: int
    dtype: str
    item_bytes: int
    device: str = "cpu"
    group: int = 0

    @property
    def layers(self) -> LayerRange:
        return LayerRange(self.first_layer, self.num_layers)

    @property
    def heads(self) -> HeadRange:
        return HeadRange(self.first_head, self.num_heads)

    def holds(self, layers: LayerRange, heads: HeadRange) -> bool:
        """Whether all heads of all these layers lie here."""
        return (
            self.layers.first <= layers.first
            and layers.end <= self.layers.end
            and self.heads.first <= heads.first
            and heads.end <= self.heads.end
        )

    @property
    def tile_size(self) -> int:
        """Places of a tile."""
        return tile_places(self.block_size)

    @property
    def layer_bytes(self) -> int:
        """Of one head in one layer of a tile: the least that moves."""
        return 2 * self.tile_size * self.head_dim * self.item_bytes

    @property
    def head_bytes(self) -> int:
        """Of one head in all layers of a tile."""
        return self.num_layers * self.layer_bytes

    @property
    def tile_bytes(self) -> int:
        return self.num_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        return self.block_size // self.tile_size * self.tile_bytes

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


def tile_places(block_size: int) -> int:
    """How many places of a block lie together."""
    return gcd(block_size, MOST_TILE_PLACES)


def check_convertible(
    ours: Sequence[PoolLayout], theirs: Sequence[PoolLayout], our_name: str, their_name: str
) -> None:
    """Settle, when two workers first meet, whether KV can move between them at all, in either direction.

    Each is given as the pools of all its ranks. Blocks of two sizes could be copied, and are refused all the
    same: a grant or a pin numbers the owner's blocks, and the other side counts in its own.

    Raises:
        LayoutMismatch: with the first thing that differs beyond conversion.
    """
    reason = _differing_field(ours, theirs) or _missing_kv(ours, theirs)
    if reason:
        raise LayoutMismatch(source=our_name, target=their_name, reason=reason)


def _differing_field(ours: Sequence[PoolLayout], theirs: Sequence[PoolLayout]) -> str:
    for field in ("group", "block_size", "head_dim", "dtype", "item_bytes"):
        expected = getattr(ours[0], field)
        for pool in (*ours, *theirs):
            found = getattr(pool, field)
            if found != expected:
                return f"{field} {expected} is not {found}"
    return ""


def _missing_kv(ours: Sequence[PoolLayout], theirs: Sequence[PoolLayout]) -> str:
    """What one of the two workers holds and the other does not."""
    for layers, heads in parts_of_pools((*ours, *theirs)):
        we_hold, they_hold = (any(pool.holds(layers, heads) for pool in pools) for pools in (ours, theirs))
        if we_hold != they_hold:
            where = f"layers {layers.first} to {layers.end - 1}, heads {heads.first} to {heads.end - 1}"
            return f"no rank of {'theirs' if we_hold else 'ours'} holds {where}"
    return ""


def parts_of_pools(pools: Sequence[PoolLayout]) -> Iterator[tuple[LayerRange, HeadRange]]:
    """What the pools span, cut wherever one begins or ends: each holds a part whole or not at all."""
    layer_cuts = sorted({cut for pool in pools for cut in (pool.layers.first, pool.layers.end)})
    head_cuts = sorted({cut for pool in pools for cut in (pool.heads.first, pool.heads.end)})
    for (first, end), (low, high) in product(pairwise(layer_cuts), pairwise(head_cuts)):
        yield LayerRange(first, end - first), HeadRange(low, high - low)
