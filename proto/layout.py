"""How KV lies in a pool, and whether it can go to another.

A pool is one run of memory per rank and kind of layer, block-major:

```
[block, layer, k/v, kv head, place, head dim]

block b ─┬─ layer 0 ─┬─ K ─┬─ head 0: place 0 … place P-1, each D numbers
         │           │     └─ head 1: …
         │           └─ V ─── …
         └─ layer 1 ─── …
```

so a block, a run of layers in it, and a run of heads in a layer's K or V are each contiguous.
"""

from typing import NamedTuple

from proto.errors import LayoutMismatch
from proto.struct import WireStruct


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


class LayerRange(NamedTuple):
    """A run of layers, by global number."""

    first: int
    num_layers: int

    @property
    def end(self) -> int:
        return self.first + self.num_layers


def check_convertible(source: PoolLayout, target: PoolLayout, source_name: str, target_name: str) -> None:
    """Settle, when two pools first meet, whether KV can move between them at all.

    Raises:
        LayoutMismatch: with the first thing that differs beyond conversion.
    """
    for field in ("group", "block_size", "head_dim", "dtype", "item_bytes"):
        ours, theirs = getattr(source, field), getattr(target, field)
        if ours != theirs:
            raise LayoutMismatch(
                source=source_name, target=target_name, reason=f"{field} {ours} is not {theirs}"
            )
