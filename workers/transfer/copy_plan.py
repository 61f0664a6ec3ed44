"""Which bytes of one pool go where in another: the plan of every transfer.

Two pools may hold different layers or heads of one model, in blocks of different sizes; what both hold moves,
and neighbours are merged:

```
block of 16 places ─┬─ layer 3 ─┬─ K ─┬─ head 0 ─┐ all heads: a run of layers is one copy
                    │           │     └─ head 1 ─┘ a head: one copy each for K and V of each layer
                    │           └─ V …
                    └─ layer 4 …                   in blocks of 64, a head's KV of these 16 places lies
                                                   between other places: one copy each, for every head
```

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

    Pools with blocks of different sizes are counted in those of the smaller: `pair_blocks`.
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
    """The runs of block 0 from pool to pool, and how far the next block lies on in each.

    A pool with larger blocks has `factor` of the smaller ones' in each of them, `part_bytes` apart; None:
    both have blocks of one size.
    """

    runs_R3: Table
    block_bytes_2: Table
    part_bytes_2: Table
    factors_2: Table | None


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
        ValueError: there are more blocks of one pool than of the other.
    """
    route = _route(source, target, layers, heads)
    return Copies(_merged(_placed(route, blocks)))


def pair_blocks(source: PoolLayout, target: PoolLayout, span: Span) -> BlockPairs:
    """The blocks that take the tokens of `span` from pool to pool, each as large as a block of the finer.

    Of the last block all moves: what lies behind the end of a sequence is nobody's.

    Raises:
        ValueError: `start` is within a block of the finer pool.
    """
    size = min(source.block_size, target.block_size)
    if span.start % size:
        raise ValueError(f"{span.start} is within a block of {size}")
    numbers = range(span.start // size, -(-span.end // size))
    return BlockPairs(
        _finer_blocks(numbers, span.sources, source.block_size // size),
        _finer_blocks(numbers, span.targets, target.block_size // size),
    )


def _finer_blocks(numbers: range, blocks: Sequence[int], factor: int) -> Sequence[int]:
    """Where the finer blocks of a sequence lie, `factor` of them in each of its blocks."""
    if factor == 1:
        return blocks[: len(numbers)]
    first = numbers.start // factor
    return [blocks[number // factor - first] * factor + number % factor for number in numbers]


def join_copies(parts: Sequence[Copies]) -> Copies:
    """All of them, in order."""
    return parts[0] if len(parts) == 1 else Copies(np.concatenate([part.table for part in parts]))


@lru_cache(MAX_ROUTES)
def _route(source: PoolLayout, target: PoolLayout, layers: LayerRange, heads: HeadRange) -> _Route:
    """Remembered: two workers move the same groups of layers time and again."""
    pools = (source, target)
    size = min(pool.block_size for pool in pools)
    runs_R3 = _table(_runs_of_block(source, target, layers, heads)).reshape(-1, 3)
    runs_R3[:, :2] += _table([pool.address for pool in pools])
    factors = [pool.block_size // size for pool in pools]
    return _Route(
        runs_R3,
        _table([pool.block_bytes for pool in pools]),
        _table([size * pool.head_dim * pool.item_bytes for pool in pools]),
        _table(factors) if max(factors) > 1 else None,
    )


def _table(rows: Sequence[Sequence[int]] | Sequence[int]) -> Table:
    return np.array(rows, dtype=np.uint64)


def _runs_of_block(
    source: PoolLayout, target: PoolLayout, layers: LayerRange, heads: HeadRange
) -> list[Copy]:
    """The runs within one block, as offsets from the start of the block."""
    first = max(source.layers.first, target.layers.first, layers.first)
    last = min(source.layers.end, target.layers.end, layers.end)
    low = max(source.heads.first, target.heads.first, heads.first)
    high = min(source.heads.end, target.heads.end, heads.end)
    if first >= last or low >= high:
        return []
    if source.block_size != target.block_size:
        rows = [
            (layer, half, head, 1)
            for layer in range(first, last)
            for half in (0, 1)
            for head in range(low, high)
        ]
    elif source.num_heads == target.num_heads == high - low:
        rows = [(first, 0, low, (last - first) * 2 * source.num_heads)]
    else:
        rows = [(layer, half, low, high - low) for layer in range(first, last) for half in (0, 1)]
    head_bytes = min(source.head_bytes, target.head_bytes)
    return [
        Copy(_offset(source, layer, half, head), _offset(target, layer, half, head), num_heads * head_bytes)
        for layer, half, head, num_heads in rows
    ]


def _offset(pool: PoolLayout, layer: int, half: int, head: int) -> int:
    row = ((layer - pool.first_layer) * 2 + half) * pool.num_heads + head - pool.first_head
    return row * pool.head_bytes


def _placed(route: _Route, blocks: BlockPairs) -> Table:
    """The runs of every block, block by block."""
    numbers_N2 = _table(blocks).T
    starts_N3 = np.zeros((len(numbers_N2), 3), dtype=np.uint64)
    if route.factors_2 is None:
        starts_N3[:, :2] = numbers_N2 * route.block_bytes_2
    else:
        parts_N2 = numbers_N2 % route.factors_2
        starts_N3[:, :2] = numbers_N2 // route.factors_2 * route.block_bytes_2 + parts_N2 * route.part_bytes_2
    placed_NR3: Table = route.runs_R3 + starts_N3[:, None]
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
