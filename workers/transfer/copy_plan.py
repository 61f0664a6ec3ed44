"""Which bytes of one pool go where in another: the plan of every transfer.

Two pools may hold different layers or heads of one model, in blocks of different sizes; what both hold moves,
and neighbours are merged:

```
block of 16 places ─┬─ head 0 ─┬─ layer 3 ─┬─ K   all heads and layers: one copy, and one for the blocks
                    │          │           └─ V   that lie side by side in both pools
                    │          └─ layer 4 …       all layers of a run of heads: one copy
                    └─ head 1 …                   a run of layers: one copy for each head
```

A block of 64 is four such in a row.

A plan is one table and no object for each piece: it is made for each group of layers that is pushed, and its
time is taken from the transfer's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from proto.layout import HeadRange, LayerRange, PoolLayout

Table = npt.NDArray[np.uint64]

MAX_ROUTES: Final = 1024
"""As many runs of layers, over all peers, are remembered; one takes a few hundred bytes, or a few thousand
where it is a piece for each head."""


EVERY_HEAD: Final = HeadRange(0, 2**32)


class BlockPairs(NamedTuple):
    """Blocks of the source pool, and of each the block of the target pool that takes its KV.

    Where the pools have blocks of different sizes, both are counted in tiles: `pair_blocks`.
    """

    sources: Sequence[int]
    targets: Sequence[int]


class Span(NamedTuple):
    """Tokens `start` to `end` of a sequence; its blocks in both pools, from those that hold `start` on."""

    start: int
    end: int
    sources: Sequence[int]
    targets: Sequence[int]


class Copy(NamedTuple):
    """One contiguous run. Units: byte addresses, bytes."""

    source: int
    target: int
    num_bytes: int


@dataclass(frozen=True, eq=False)
class Copies:
    """Contiguous runs, a row each, in the columns of `Copy`."""

    table: Table

    @cached_property
    def num_bytes(self) -> int:
        return int(self.table[:, 2].sum())

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Copy]:
        return (Copy(*row) for row in self.table.tolist())


@dataclass(frozen=True, eq=False)
class _Route:
    """The runs of block 0 from pool to pool, and how far the next block lies on in each."""

    runs_R3: Table
    block_bytes_2: Table


def plan_copies(
    source: PoolLayout,
    target: PoolLayout,
    blocks: BlockPairs,
    layers: LayerRange,
    heads: HeadRange = EVERY_HEAD,
) -> Copies:
    """The copies that move `layers` and `heads` of `blocks`, as far as both pools hold them.

    Pure. Pools sharded alike give a copy a block, and one for a run of blocks that lie side by side in both.

    Raises:
        ValueError: there are more blocks of one pool than of the other, or their tiles are not of one size.
    """
    route = _route(source, target, layers, heads)
    return Copies(_merged(_placed(route.runs_R3, route.block_bytes_2, blocks)))


def pair_blocks(source: PoolLayout, target: PoolLayout, span: Span) -> BlockPairs:
    """The blocks that take the tokens of `span` from pool to pool; tiles, where blocks are not of one size.

    Of the last block all moves: what lies behind the end of a sequence is nobody's.

    Raises:
        ValueError: `start` is within a block, or a tile.
    """
    size = _unit_size(source, target)
    if span.start % size:
        raise ValueError(f"{span.start} is within a block of {size}")
    numbers = range(span.start // size, -(-span.end // size))
    return BlockPairs(
        _units(numbers, span.sources, source.block_size // size),
        _units(numbers, span.targets, target.block_size // size),
    )


def _unit_size(source: PoolLayout, target: PoolLayout) -> int:
    """Of a block, or, where blocks are not of one size, of a tile."""
    if source.tile_size != target.tile_size:
        raise ValueError(f"tiles of {source.tile_size} places are not cut into those of {target.tile_size}")
    return source.block_size if source.block_size == target.block_size else source.tile_size


def _units(numbers: range, blocks: Sequence[int], units_a_block: int) -> Sequence[int]:
    """Where those of a sequence with these numbers lie."""
    if units_a_block == 1:
        return blocks[: len(numbers)]
    first = numbers.start // units_a_block
    return [
        blocks[number // units_a_block - first] * units_a_block + number % units_a_block for number in numbers
    ]


def join_copies(parts: Sequence[Copies]) -> Copies:
    """All of them, in order."""
    return parts[0] if len(parts) == 1 else Copies(np.concatenate([part.table for part in parts]))


@lru_cache(MAX_ROUTES)
def _route(source: PoolLayout, target: PoolLayout, layers: LayerRange, heads: HeadRange) -> _Route:
    """Remembered: two workers move the same groups of layers time and again."""
    pools = (source, target)
    num_tiles = _unit_size(source, target) // source.tile_size
    runs_T3 = _table(_runs_of_tile(source, target, layers, heads)).reshape(-1, 3)
    runs_T3[:, :2] += _table([pool.address for pool in pools])
    tile_bytes_2 = _table([pool.tile_bytes for pool in pools])
    tiles = range(num_tiles)
    runs_R3 = _merged(_placed(runs_T3, tile_bytes_2, BlockPairs(tiles, tiles)))
    return _Route(runs_R3, tile_bytes_2 * np.uint64(num_tiles))


def _table(rows: Sequence[Sequence[int]] | Sequence[int]) -> Table:
    return np.array(rows, dtype=np.uint64)


def _runs_of_tile(source: PoolLayout, target: PoolLayout, layers: LayerRange, heads: HeadRange) -> list[Copy]:
    """The runs within one tile, as offsets from its start."""
    first = max(source.layers.first, target.layers.first, layers.first)
    last = min(source.layers.end, target.layers.end, layers.end)
    low = max(source.heads.first, target.heads.first, heads.first)
    high = min(source.heads.end, target.heads.end, heads.end)
    if first >= last or low >= high:
        return []
    is_whole = source.num_layers == target.num_layers == last - first
    heads_a_run = high - low if is_whole else 1
    num_bytes = heads_a_run * (last - first) * min(source.layer_bytes, target.layer_bytes)
    return [
        Copy(_offset(source, first, head), _offset(target, first, head), num_bytes)
        for head in range(low, high, heads_a_run)
    ]


def _offset(pool: PoolLayout, layer: int, head: int) -> int:
    return (head - pool.first_head) * pool.head_bytes + (layer - pool.first_layer) * pool.layer_bytes


def _placed(runs_R3: Table, block_bytes_2: Table, blocks: BlockPairs) -> Table:
    """The runs of every block, block by block."""
    numbers_N2 = _table(blocks).T
    starts_N3 = np.zeros((len(numbers_N2), 3), dtype=np.uint64)
    starts_N3[:, :2] = numbers_N2 * block_bytes_2
    placed_NR3: Table = runs_R3 + starts_N3[:, None]
    return placed_NR3


def _merged(placed_NR3: Table) -> Table:
    """The last run of a block that goes on in both pools as the first of the next becomes part of it."""
    copies_X3 = placed_NR3.reshape(-1, 3)
    if not len(copies_X3):
        return copies_X3
    ends_N2 = placed_NR3[:-1, -1, :2] + placed_NR3[:-1, -1, 2:]
    goes_on_N = (placed_NR3[1:, 0, :2] == ends_N2).all(axis=1)
    if not goes_on_N.any():
        return copies_X3
    is_start_X = np.ones(len(copies_X3), dtype=np.bool_)
    is_start_X[placed_NR3.shape[1] :: placed_NR3.shape[1]] = ~goes_on_N
    starts = np.flatnonzero(is_start_X)
    merged_Y3 = copies_X3[starts]
    merged_Y3[:, 2] = np.add.reduceat(copies_X3[:, 2], starts)
    return merged_Y3
