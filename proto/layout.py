"""How KV lies in a pool, and which bytes of one pool go where in another.

A pool is one run of memory per rank and kind of layer, block-major:

```
[block, layer, k/v, kv head, place, head dim]

block b ─┬─ layer 0 ─┬─ K ─┬─ head 0: place 0 … place P-1, each D numbers
         │           │     └─ head 1: …
         │           └─ V ─── …
         └─ layer 1 ─── …
```

so a block, a run of layers in it, and a run of heads in a layer's K or V are each contiguous. `plan_copies`
pairs the bytes of two pools that hold different layers or heads of one model, merging neighbours.
"""

from collections.abc import Iterator, Sequence
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


class BlockPair(NamedTuple):
    """A block of the source pool and the block of the target pool that takes its KV."""

    source: int
    target: int


class Copy(NamedTuple):
    """One contiguous run. Units: byte addresses, bytes."""

    source: int
    target: int
    num_bytes: int


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


def plan_copies(
    source: PoolLayout, target: PoolLayout, blocks: Sequence[BlockPair], layers: LayerRange
) -> list[Copy]:
    """The copies that move `layers` of `blocks`, for the layers and heads that both pools hold.

    Pure; neighbouring runs are merged, so pools sharded alike give one copy a block, and one for a run of
    blocks that lie side by side in both.
    """
    first = max(source.first_layer, target.first_layer, layers.first)
    last = min(source.first_layer + source.num_layers, target.first_layer + target.num_layers, layers.end)
    low = max(source.first_head, target.first_head)
    high = min(source.first_head + source.num_heads, target.first_head + target.num_heads)
    if first >= last or low >= high:
        return []
    runs = list(_runs_of_block(source, target, LayerRange(first, last - first), low, high))
    return list(_merged(_placed(source, target, blocks, runs)))


def _runs_of_block(
    source: PoolLayout, target: PoolLayout, layers: LayerRange, low: int, high: int
) -> Iterator[Copy]:
    """The runs within one block, as offsets from the start of the block."""
    whole = source.num_heads == target.num_heads == high - low
    if whole:
        yield Copy(
            (layers.first - source.first_layer) * source.layer_bytes,
            (layers.first - target.first_layer) * target.layer_bytes,
            layers.num_layers * source.layer_bytes,
        )
        return
    for layer in range(layers.first, layers.end):
        for half in (0, 1):
            yield Copy(
                _head_offset(source, layer, half, low),
                _head_offset(target, layer, half, low),
                (high - low) * source.head_bytes,
            )


def _head_offset(pool: PoolLayout, layer: int, half: int, head: int) -> int:
    row = ((layer - pool.first_layer) * 2 + half) * pool.num_heads + head - pool.first_head
    return row * pool.head_bytes


def _placed(
    source: PoolLayout, target: PoolLayout, blocks: Sequence[BlockPair], runs: Sequence[Copy]
) -> Iterator[Copy]:
    for pair in blocks:
        source_start = source.address + pair.source * source.block_bytes
        target_start = target.address + pair.target * target.block_bytes
        for run in runs:
            yield Copy(source_start + run.source, target_start + run.target, run.num_bytes)


def _merged(copies: Iterator[Copy]) -> Iterator[Copy]:
    held: Copy | None = None
    for copy in copies:
        if held is None:
            held = copy
        elif held.source + held.num_bytes == copy.source and held.target + held.num_bytes == copy.target:
            held = Copy(held.source, held.target, held.num_bytes + copy.num_bytes)
        else:
            yield held
            held = copy
    if held is not None:
        yield held
