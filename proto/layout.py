"""How KV lies in a pool, and whether it can go to another.

A pool is one run of memory per rank and kind of layer, block-major:

```
[block, layer, k/v, kv head, place, head dim]

block b ─┬─ layer 0 ─┬─ K ─┬─ head 0: place 0 … place P-1, each D numbers
         │           │     └─ head 1: …
         │           └─ V ─── …
         └─ layer 1 ─── …
```

so a block, a run of layers in it, and a run of heads in a layer's K or V are each contiguous. A worker of
many ranks has a pool for each, with some of the layers and some of the heads. Together they hold all of
them; they may share them out unevenly, and hold some more than once.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from proto.errors import LayoutMismatch
from proto.struct import WireStruct


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
    def head_bytes(self) -> int:
        return self.block_size * self.head_dim * self.item_bytes

    @property
    def layer_bytes(self) -> int:
        return 2 * self.num_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.layer_bytes

    @property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


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
