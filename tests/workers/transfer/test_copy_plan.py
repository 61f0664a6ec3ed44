"""The plan of copies moves exactly the bytes that a copy of one number after the other would move."""

import random
from collections.abc import Iterator
from itertools import pairwise, product

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from proto.layout import LayerRange, PoolLayout
from tests.proto.pool_layouts import make_pool
from workers.transfer.copy_plan import BlockPair, Copies, Copy, plan_copies


class Case(msgspec.Struct, frozen=True):
    """Two pools of one model, the blocks to move between them, and the layers of those."""

    source: PoolLayout
    target: PoolLayout
    blocks: list[BlockPair]
    layers: LayerRange


def ranges(size: int) -> st.SearchStrategy[tuple[int, int]]:
    """A first and a count of at least one, within `size`."""
    return st.integers(0, size - 1).flatmap(
        lambda first: st.tuples(st.just(first), st.integers(1, size - first))
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_layers, num_heads = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    shape = {
        "block_size": draw(st.integers(1, 3)),
        "head_dim": draw(st.integers(1, 3)),
        "item_bytes": draw(st.integers(1, 2)),
    }
    pools = []
    for _ in range(2):
        (first_layer, held_layers), (first_head, held_heads) = (
            draw(ranges(num_layers)),
            draw(ranges(num_heads)),
        )
        pools.append(
            make_pool(
                address=draw(st.integers(0, 10_000)),
                num_blocks=draw(st.integers(1, 6)),
                first_layer=first_layer,
                num_layers=held_layers,
                first_head=first_head,
                num_heads=held_heads,
                **shape,
            )
        )
    source, target = pools
    targets = draw(st.permutations(range(target.num_blocks)))
    sources = draw(st.lists(st.integers(0, source.num_blocks - 1), max_size=target.num_blocks))
    if draw(st.booleans()):
        targets, sources = sorted(targets), sorted(sources)
    blocks = [BlockPair(*pair) for pair in zip(sources, targets, strict=False)]
    return Case(source, target, blocks, LayerRange(*draw(ranges(num_layers))))


def offset_of(pool: PoolLayout, place: tuple[int, int, int, int, int, int]) -> int:
    """The byte at which the number of [block, layer, k/v, head, place, dim] begins, counted in the pool."""
    block, layer, half, head, spot, dim = place
    index = block
    index = index * pool.num_layers + layer - pool.first_layer
    index = index * 2 + half
    index = index * pool.num_heads + head - pool.first_head
    index = index * pool.block_size + spot
    index = index * pool.head_dim + dim
    return index * pool.item_bytes


def numbers_to_move(case: Case) -> Iterator[tuple[int, int]]:
    """Source and target offset of each single number."""
    source, target = case.source, case.target
    layers = set(range(source.first_layer, source.first_layer + source.num_layers))
    layers &= set(range(target.first_layer, target.first_layer + target.num_layers))
    layers &= set(range(case.layers.first, case.layers.first + case.layers.num_layers))
    heads = set(range(source.first_head, source.first_head + source.num_heads))
    heads &= set(range(target.first_head, target.first_head + target.num_heads))
    within = product(layers, (0, 1), heads, range(source.block_size), range(source.head_dim))
    for (layer, half, head, spot, dim), pair in product(within, case.blocks):
        rest = (layer, half, head, spot, dim)
        yield offset_of(source, (pair.source, *rest)), offset_of(target, (pair.target, *rest))


def apply(copies: Copies, case: Case, memory: bytes, onto: bytearray) -> None:
    for copy in copies:
        start, end = copy.source - case.source.address, copy.target - case.target.address
        assert 0 <= start <= start + copy.num_bytes <= len(memory)
        assert 0 <= end <= end + copy.num_bytes <= len(onto)
        onto[end : end + copy.num_bytes] = memory[start : start + copy.num_bytes]


@given(cases())
def test_the_plan_moves_what_a_copy_of_every_single_number_moves(case: Case) -> None:
    memory = random.Random(0).randbytes(case.source.pool_bytes)
    before = random.Random(1).randbytes(case.target.pool_bytes)
    planned, naive = bytearray(before), bytearray(before)
    apply(plan_copies(case.source, case.target, case.blocks, case.layers), case, memory, planned)
    size = case.source.item_bytes
    for source, target in numbers_to_move(case):
        naive[target : target + size] = memory[source : source + size]
    assert planned == naive


@given(cases())
def test_the_plan_touches_no_byte_twice(case: Case) -> None:
    copies = plan_copies(case.source, case.target, case.blocks, case.layers)
    wanted = sum(1 for _ in numbers_to_move(case)) * case.source.item_bytes
    assert copies.num_bytes == sum(copy.num_bytes for copy in copies) == wanted
    by_target = sorted(copies, key=lambda copy: copy.target)
    assert all(one.target + one.num_bytes <= other.target for one, other in pairwise(by_target))


@given(cases())
def test_no_two_copies_of_a_plan_could_be_one(case: Case) -> None:
    copies = plan_copies(case.source, case.target, case.blocks, case.layers)
    assert all(copy.num_bytes > 0 for copy in copies)
    for one, other in pairwise(copies):
        follows = one.source + one.num_bytes == other.source and one.target + one.num_bytes == other.target
        assert not follows


def num_copies(
    source: PoolLayout, target: PoolLayout, *blocks: BlockPair, layers: LayerRange | None = None
) -> int:
    return len(plan_copies(source, target, blocks, layers or LayerRange(0, 6)))


def test_pools_sharded_alike_take_one_copy_a_block() -> None:
    scattered = (BlockPair(0, 5), BlockPair(2, 1), BlockPair(4, 3))
    assert num_copies(make_pool(), make_pool(address=0), *scattered) == 3


def test_blocks_side_by_side_in_both_pools_take_one_copy_together() -> None:
    runs = (BlockPair(0, 3), BlockPair(1, 4), BlockPair(2, 5), BlockPair(6, 0), BlockPair(7, 1))
    assert list(plan_copies(make_pool(), make_pool(address=0), runs, LayerRange(0, 6))) == [
        Copy(4096, 3 * make_pool().block_bytes, 3 * make_pool().block_bytes),
        Copy(4096 + 6 * make_pool().block_bytes, 0, 2 * make_pool().block_bytes),
    ]


def test_blocks_side_by_side_in_one_pool_alone_take_a_copy_each() -> None:
    assert num_copies(make_pool(), make_pool(), BlockPair(0, 3), BlockPair(1, 5)) == 2
    assert num_copies(make_pool(), make_pool(), BlockPair(0, 4), BlockPair(1, 3)) == 2


def test_some_layers_of_blocks_side_by_side_take_one_copy_a_block() -> None:
    side_by_side = (BlockPair(0, 0), BlockPair(1, 1))
    assert num_copies(make_pool(), make_pool(), *side_by_side, layers=LayerRange(2, 3)) == 2


def test_layers_held_by_both_move_and_others_do_not() -> None:
    first_half, second_half = make_pool(num_layers=3), make_pool(first_layer=3, num_layers=3)
    assert num_copies(make_pool(), second_half, BlockPair(0, 0)) == 1
    assert num_copies(first_half, second_half, BlockPair(0, 0)) == 0
    assert num_copies(make_pool(), make_pool(), BlockPair(0, 0), layers=LayerRange(6, 2)) == 0


def test_tensor_shards_to_pipeline_stages_take_a_head_range_for_each_layer_and_half() -> None:
    shards = [make_pool(num_heads=2), make_pool(first_head=2, num_heads=2)]
    stages = [make_pool(num_layers=3), make_pool(first_layer=3, num_layers=3)]
    for shard, stage in product(shards, stages):
        assert num_copies(shard, stage, BlockPair(0, 0)) == 3 * 2
        assert num_copies(stage, shard, BlockPair(0, 0)) == 3 * 2


def test_no_blocks_take_no_copies() -> None:
    copies = plan_copies(make_pool(), make_pool(), [], LayerRange(0, 6))
    assert (list(copies), len(copies), copies.num_bytes) == ([], 0, 0)
