"""Which bytes of one pool go where in another: the plan of every transfer.

Two pools may hold different layers or heads of one model; what both hold moves, and neighbours are merged. A
plan is one table and no object for each piece: it is made for each group of layers that is pushed, and its
time is taken from the transfer's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proto.layout import LayerRange, PoolLayout

Table = npt.NDArray[np.uint64]


class BlockPair(NamedTuple):
    """A block of the source pool and the block of the target pool that takes its KV."""

    source: int
    target: int


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


def plan_copies(
    source: PoolLayout, target: PoolLayout, blocks: Sequence[BlockPair], layers: LayerRange
) -> Copies:
    """The copies that move `layers` of `blocks`, for the layers and heads that both pools hold.

    Pure. Pools sharded alike give a copy a block, and one for a run of blocks that lie side by side in both.
    """
    runs = _runs_of_block(source, target, layers)
    if not runs or not blocks:
        return Copies(np.empty((0, 3), dtype=np.uint64))
    return Copies(_merged(_placed(source, target, blocks, runs)))


def join_copies(parts: Sequence[Copies]) -> Copies:
    """All of them, in order."""
    return parts[0] if len(parts) == 1 else Copies(np.concatenate([part.table for part in parts]))


def _runs_of_block(source: PoolLayout, target: PoolLayout, layers: LayerRange) -> list[Copy]:
    """The runs within one block, as offsets from the start of the block."""
    first = max(source.first_layer, target.first_layer, layers.first)
    last = min(source.first_layer + source.num_layers, target.first_layer + target.num_layers, layers.end)
    low = max(source.first_head, target.first_head)
    high = min(source.first_head + source.num_heads, target.first_head + target.num_heads)
    if first >= last or low >= high:
        return []
    if source.num_heads == target.num_heads == high - low:
        return [
            Copy(
                (first - source.first_layer) * source.layer_bytes,
                (first - target.first_layer) * target.layer_bytes,
                (last - first) * source.layer_bytes,
            )
        ]
    return [
        Copy(
            _head_offset(source, layer, half, low),
            _head_offset(target, layer, half, low),
            (high - low) * source.head_bytes,
        )
        for layer in range(first, last)
        for half in (0, 1)
    ]


def _head_offset(pool: PoolLayout, layer: int, half: int, head: int) -> int:
    row = ((layer - pool.first_layer) * 2 + half) * pool.num_heads + head - pool.first_head
    return row * pool.head_bytes


def _placed(
    source: PoolLayout, target: PoolLayout, blocks: Sequence[BlockPair], runs: Sequence[Copy]
) -> Table:
    """The runs of every block, block by block."""
    numbers_N2 = np.array(blocks, dtype=np.uint64)
    starts_N2 = numbers_N2 * np.array([source.block_bytes, target.block_bytes], dtype=np.uint64)
    starts_N2 += np.array([source.address, target.address], dtype=np.uint64)
    runs_R3 = np.array(runs, dtype=np.uint64)
    placed_NR3 = np.tile(runs_R3, (len(blocks), 1, 1))
    placed_NR3[:, :, :2] += starts_N2[:, None]
    return placed_NR3.reshape(-1, 3)


def _merged(copies_X3: Table) -> Table:
    """Runs that go on in both pools where the one before them ends become part of it."""
    ends_X2 = copies_X3[:, :2] + copies_X3[:, 2:]
    is_start_X = np.ones(len(copies_X3), dtype=bool)
    is_start_X[1:] = (copies_X3[1:, :2] != ends_X2[:-1]).any(axis=1)
    starts = np.flatnonzero(is_start_X)
    if len(starts) == len(copies_X3):
        return copies_X3
    merged_Y3 = copies_X3[starts]
    merged_Y3[:, 2] = np.add.reduceat(copies_X3[:, 2], starts)
    return merged_Y3
