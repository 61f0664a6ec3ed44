"""The plan of copies moves exactly the bytes that a copy of one number after the other would move."""

import random
from collections.abc import Iterator
from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.layout import HeadRange, LayerRange, PoolLayout
from tests.proto.pool_layouts import make_pool
from workers.transfer.copy_plan import BlockPairs, Copies, Copy, Span, pair_blocks, plan_copies


class Case(msgspec.Struct, frozen=True):
    """Two pools of one model, the tokens to move between them, and the layers and heads of those."""

    source: PoolLayout
    target: PoolLayout
    span: Span
    layers: LayerRange
    heads: HeadRange

    @property
    def copies(self) -> Copies:
        blocks = pair_blocks(self.source, self.target, self.span)
        return plan_copies(self.source, self.target, blocks, self.layers, self.heads)


def ranges(size: int) -> st.SearchStrategy[tuple[int, int]]:
    """A first and a count of at least one, within `size`."""
    return st.integers(0, size - 1).flatmap(
        lambda first: st.tuples(st.just(first), st.integers(1, size - first))
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_layers, num_heads = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    shape = {"head_dim": draw(st.integers(1, 2)), "item_bytes": draw(st.integers(1, 2))}
    size = draw(st.sampled_from([1, 3, 16, 24]))
    factors = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1), (3, 2)])) if size == 16 else (1, 1)
    num_tokens = draw(st.integers(0, 6)) * size
    start = draw(st.integers(0, num_tokens // size)) * size
    pools: list[PoolLayout] = []
    tables: list[list[int]] = []
    for factor in factors:
        (first_layer, held_layers), (first_head, held_heads) = (
            draw(ranges(num_layers)),
            draw(ranges(num_heads)),
        )
        num_blocks = -(-num_tokens // (factor * size)) + draw(st.integers(1, 3))
        pools.append(
            make_pool(
                address=draw(st.integers(0, 10_000)),
                num_blocks=num_blocks,
                block_size=factor * size,
                first_layer=first_layer,
                num_layers=held_layers,
                first_head=first_head,
                num_heads=held_heads,
                **shape,
            )
        )
        blocks = draw(st.one_of(st.permutations(range(num_blocks)), st.just(range(num_blocks))))
        tables.append(list(blocks)[start // (factor * size) : -(-num_tokens // (factor * size))])
    layers, heads = LayerRange(*draw(ranges(num_layers))), HeadRange(*draw(ranges(num_heads)))
    return Case(pools[0], pools[1], Span(start, num_tokens, *tables), layers, heads)


def offset_of(pool: PoolLayout, place: tuple[int, int, int, int, int, int]) -> int:
    """The byte at which the number of [block, head, layer, k/v, place, dim] begins, counted in the pool."""
    block, head, layer, half, spot, dim = place
    index = block * (pool.block_size // pool.tile_size) + spot // pool.tile_size
    index = index * pool.num_heads + head - pool.first_head
    index = index * pool.num_layers + layer - pool.first_layer
    index = index * 2 + half
    index = index * pool.tile_size + spot % pool.tile_size
    index = index * pool.head_dim + dim
    return index * pool.item_bytes


def numbers_to_move(case: Case) -> Iterator[tuple[int, int]]:
    """Source and target offset of each single number."""
    pools, span = (case.source, case.target), case.span
    layers = set.intersection(
        *(set(range(held.first, held.end)) for held in (*(p.layers for p in pools), case.layers))
    )
    heads = set.intersection(
        *(set(range(held.first, held.end)) for held in (*(p.heads for p in pools), case.heads))
    )
    within = product(range(span.start, span.end), layers, (0, 1), heads, range(case.source.head_dim))
    for token, layer, half, head, dim in within:
        offsets = []
        for pool, blocks in zip(pools, (span.sources, span.targets), strict=True):
            block = blocks[token // pool.block_size - span.start // pool.block_size]
            offsets.append(offset_of(pool, (block, head, layer, half, token % pool.block_size, dim)))
        yield offsets[0], offsets[1]


def apply(copies: Copies, source: PoolLayout, memory: bytes, target: PoolLayout, onto: bytearray) -> None:
    for copy in copies:
        start, end = copy.source - source.address, copy.target - target.address
        assert 0 <= start <= start + copy.num_bytes <= len(memory)
        assert 0 <= end <= end + copy.num_bytes <= len(onto)
        onto[end : end + copy.num_bytes] = memory[start : start + copy.num_bytes]


@given(cases())
def test_the_plan_moves_what_a_copy_of_every_single_number_moves(case: Case) -> None:
    memory = random.Random(0).randbytes(case.source.pool_bytes)
    before = random.Random(1).randbytes(case.target.pool_bytes)
    planned, naive = bytearray(before), bytearray(before)
    apply(case.copies, case.source, memory, case.target, planned)
    size = case.source.item_bytes
    for source, target in numbers_to_move(case):
        naive[target : target + size] = memory[source : source + size]
    assert planned == naive


@given(cases())
def test_the_plan_touches_no_byte_twice(case: Case) -> None:
    copies = case.copies
    wanted = sum(1 for _ in numbers_to_move(case)) * case.source.item_bytes
    assert copies.num_bytes == sum(copy.num_bytes for copy in copies) == wanted
    by_target = sorted(copies, key=lambda copy: copy.target)
    assert all(one.target + one.num_bytes <= other.target for one, other in pairwise(by_target))


@given(cases())
def test_no_two_copies_of_a_plan_could_be_one(case: Case) -> None:
    copies = case.copies
    assert all(copy.num_bytes > 0 for copy in copies)
    for one, other in pairwise(copies):
        follows = one.source + one.num_bytes == other.source and one.target + one.num_bytes == other.target
        assert not follows


def num_copies(
    source: PoolLayout, target: PoolLayout, *pairs: tuple[int, int], layers: LayerRange | None = None
) -> int:
    blocks = BlockPairs(*zip(*pairs, strict=True))
    return len(plan_copies(source, target, blocks, layers or LayerRange(0, 6)))


def test_pools_sharded_alike_take_one_copy_a_block() -> None:
    scattered = ((0, 5), (2, 1), (4, 3))
    assert num_copies(make_pool(), make_pool(address=0), *scattered) == 3


def test_blocks_side_by_side_in_both_pools_take_one_copy_together() -> None:
    runs = BlockPairs([0, 1, 2, 6, 7], [3, 4, 5, 0, 1])
    assert list(plan_copies(make_pool(), make_pool(address=0), runs, LayerRange(0, 6))) == [
        Copy(4096, 3 * make_pool().block_bytes, 3 * make_pool().block_bytes),
        Copy(4096 + 6 * make_pool().block_bytes, 0, 2 * make_pool().block_bytes),
    ]


def test_blocks_side_by_side_in_one_pool_alone_take_a_copy_each() -> None:
    assert num_copies(make_pool(), make_pool(), (0, 3), (1, 5)) == 2
    assert num_copies(make_pool(), make_pool(), (0, 4), (1, 3)) == 2


def test_some_layers_take_a_copy_for_each_head_and_block() -> None:
    side_by_side = ((0, 0), (1, 1))
    assert num_copies(make_pool(), make_pool(), *side_by_side, layers=LayerRange(2, 3)) == 2 * 4


def test_layers_held_by_both_move_and_others_do_not() -> None:
    first_half, second_half = make_pool(num_layers=3), make_pool(first_layer=3, num_layers=3)
    assert num_copies(make_pool(), second_half, (0, 0)) == 4
    assert num_copies(first_half, second_half, (0, 0)) == 0
    assert num_copies(make_pool(), make_pool(), (0, 0), layers=LayerRange(6, 2)) == 0


def test_some_heads_take_one_copy_for_all_layers() -> None:
    low, middle = make_pool(num_heads=3), make_pool(first_head=1, num_heads=2)
    assert num_copies(make_pool(), low, (0, 0)) == 1
    assert num_copies(low, middle, (0, 0), (2, 5)) == 2


def test_tensor_shards_to_pipeline_stages_take_a_run_of_layers_for_each_head() -> None:
    shards = [make_pool(num_heads=2), make_pool(first_head=2, num_heads=2)]
    stages = [make_pool(num_layers=3), make_pool(first_layer=3, num_layers=3)]
    for shard, stage in product(shards, stages):
        assert num_copies(shard, stage, (0, 0)) == 2
        assert num_copies(stage, shard, (0, 0)) == 2


def test_a_larger_block_is_as_many_smaller_ones_in_a_row() -> None:
    small, large = make_pool(block_size=16), make_pool(block_size=64, num_blocks=2)
    into_large = pair_blocks(small, large, Span(16, 96, [7, 2, 5, 0, 1], [1, 0]))
    assert into_large == BlockPairs([7, 2, 5, 0, 1], [5, 6, 7, 0, 1])
    into_small = pair_blocks(large, small, Span(16, 96, [1, 0], [7, 2, 5, 0, 1]))
    assert into_small == BlockPairs(into_large.targets, into_large.sources)
    assert len(plan_copies(small, large, into_large, LayerRange(0, 6))) == 4, "0 and 1 are side by side"
    with pytest.raises(ValueError, match="within a block of 16"):
        pair_blocks(small, large, Span(8, 96, [7, 2, 5, 0, 1], [1, 0]))


def test_tiles_of_two_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="tiles of 8"):
        pair_blocks(make_pool(block_size=8), make_pool(block_size=16), Span(0, 16, [0, 1], [0]))
    with pytest.raises(ValueError, match="tiles of 8"):
        plan_copies(make_pool(block_size=8), make_pool(block_size=16), BlockPairs([0], [0]), LayerRange(0, 6))


def test_of_the_last_block_all_moves() -> None:
    blocks = pair_blocks(make_pool(), make_pool(), Span(4, 9, [3, 1], [0, 2]))
    assert blocks == BlockPairs([3, 1], [0, 2])


def test_no_blocks_take_no_copies() -> None:
    copies = plan_copies(make_pool(), make_pool(), BlockPairs([], []), LayerRange(0, 6))
    assert (list(copies), len(copies), copies.num_bytes) == ([], 0, 0)


def test_blocks_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="inhomogeneous"):
        plan_copies(make_pool(), make_pool(), BlockPairs([0, 1], [3, 4, 5]), LayerRange(0, 6))
    with pytest.raises(ValueError, match="inhomogeneous"):
        plan_copies(make_pool(), make_pool(), BlockPairs([0, 1], [3]), LayerRange(0, 6))
