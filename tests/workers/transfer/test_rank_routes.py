"""The routes between two workers fill every rank of the target, each byte once, however both are sharded."""

import random
from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from proto.layout import HeadRange, LayerRange, PoolLayout
from tests.proto.pool_layouts import make_pool
from workers.transfer.copy_plan import Span, pair_blocks, plan_copies
from workers.transfer.rank_routes import RankRoute, plan_routes

NUM_TOKENS = 48
Pools = tuple[PoolLayout, ...]


def shard(num_layers: int, stages: list[int], heads: list[tuple[int, int]], block_size: int = 16) -> Pools:
    """Ranks of stages that begin at these layers, each stage with ranks of these heads (first, count)."""
    ends = [*stages[1:], num_layers]
    return tuple(
        make_pool(
            address=0,
            num_blocks=NUM_TOKENS // block_size,
            block_size=block_size,
            first_layer=first,
            num_layers=end - first,
            first_head=head,
            num_heads=num_heads,
        )
        for first, end in zip(stages, ends, strict=True)
        for head, num_heads in heads
    )


@st.composite
def workers(draw: st.DrawFn, num_layers: int, num_heads: int) -> Pools:
    """Stages cut anywhere; heads cut anywhere, or each held by several ranks."""
    stages = sorted(draw(st.sets(st.integers(1, num_layers - 1), max_size=3)) | {0})
    cuts = sorted(draw(st.sets(st.integers(1, num_heads - 1), max_size=3)) | {0})
    heads = [(cut, end - cut) for cut, end in zip(cuts, [*cuts[1:], num_heads], strict=True)]
    num_replicas = draw(st.integers(1, 3))
    return shard(
        num_layers,
        stages,
        [held for held in heads for _ in range(num_replicas)],
        draw(st.sampled_from([16, 48])),
    )


@st.composite
def pairs_of_workers(draw: st.DrawFn) -> tuple[Pools, Pools]:
    num_layers, num_heads = draw(st.integers(2, 6)), draw(st.integers(2, 4))
    return draw(workers(num_layers, num_heads)), draw(workers(num_layers, num_heads))


def cell_bytes(pool: PoolLayout, layer: int, head: int) -> list[int]:
    """Where in the pool each token of this layer and head begins, keys and then values."""
    token_bytes = pool.head_dim * pool.item_bytes
    start = (head - pool.first_head) * pool.head_bytes + (layer - pool.first_layer) * pool.layer_bytes
    return [
        token // pool.tile_size * pool.tile_bytes
        + start
        + (half * pool.tile_size + token % pool.tile_size) * token_bytes
        for half in (0, 1)
        for token in range(NUM_TOKENS)
    ]


def naive(truth: dict[tuple[int, int, int], bytes], pool: PoolLayout) -> bytearray:
    """The pool with all tokens of its layers and heads, as `truth` has them."""
    memory = bytearray(pool.pool_bytes)
    for layer in range(pool.layers.first, pool.layers.end):
        for head in range(pool.heads.first, pool.heads.end):
            for number, start in enumerate(cell_bytes(pool, layer, head)):
                piece = truth[layer, head, number]
                memory[start : start + len(piece)] = piece
    return memory


def span_of(source: PoolLayout, target: PoolLayout) -> Span:
    return Span(0, NUM_TOKENS, range(source.num_blocks), range(target.num_blocks))


@given(pairs_of_workers())
def test_every_rank_of_the_target_gets_all_that_it_holds_and_each_byte_once(
    both: tuple[Pools, Pools],
) -> None:
    sources, targets = both
    drawn = random.Random(0)
    cells = product(
        range(max(pool.layers.end for pool in sources)),
        range(max(pool.heads.end for pool in sources)),
        range(2 * NUM_TOKENS),
    )
    truth = {cell: drawn.randbytes(sources[0].head_dim * sources[0].item_bytes) for cell in cells}
    memories = [naive(truth, pool) for pool in sources]
    written = [bytearray(pool.pool_bytes) for pool in targets]
    num_bytes = [0] * len(targets)
    for route in plan_routes(sources, targets):
        source, target = sources[route.source], targets[route.target]
        blocks = pair_blocks(source, target, span_of(source, target))
        for copy in plan_copies(source, target, blocks, route.layers, route.heads):
            piece = memories[route.source][copy.source : copy.source + copy.num_bytes]
            written[route.target][copy.target : copy.target + copy.num_bytes] = piece
            num_bytes[route.target] += copy.num_bytes
    assert written == [naive(truth, pool) for pool in targets]
    assert num_bytes == [pool.pool_bytes for pool in targets]


@given(pairs_of_workers())
def test_a_route_is_within_what_both_ranks_hold_and_both_workers_find_the_same(
    both: tuple[Pools, Pools],
) -> None:
    sources, targets = both
    routes = plan_routes(sources, targets)
    for route in routes:
        assert sources[route.source].holds(route.layers, route.heads)
        assert targets[route.target].holds(route.layers, route.heads)
    plan_routes.cache_clear()
    assert plan_routes(sources, targets) == routes


def test_tensor_shards_to_pipeline_stages_cross_in_four_routes() -> None:
    shards, stages = shard(6, [0], [(0, 2), (2, 2)]), shard(6, [0, 3], [(0, 4)])
    low, high = LayerRange(0, 3), LayerRange(3, 3)
    left, right = HeadRange(0, 2), HeadRange(2, 2)
    assert plan_routes(shards, stages) == (
        RankRoute(0, 0, low, left),
        RankRoute(1, 0, low, right),
        RankRoute(0, 1, high, left),
        RankRoute(1, 1, high, right),
    )


def test_thirty_layers_as_sixteen_and_fourteen_come_to_one_rank_in_two_routes() -> None:
    stages, whole = shard(30, [0, 16], [(0, 3)]), shard(30, [0], [(0, 3)])
    assert plan_routes(stages, whole) == (
        RankRoute(0, 0, LayerRange(0, 16), HeadRange(0, 3)),
        RankRoute(1, 0, LayerRange(16, 14), HeadRange(0, 3)),
    )


def test_workers_sharded_alike_move_rank_by_rank() -> None:
    pools = shard(6, [0, 3], [(0, 2), (2, 2)])
    routes = plan_routes(pools, pools)
    assert [(route.source, route.target) for route in routes] == [(rank, rank) for rank in range(4)]
    assert [(route.layers, route.heads) for route in routes] == [(pool.layers, pool.heads) for pool in pools]


def test_ranks_that_hold_the_same_head_share_out_the_targets_among_them() -> None:
    """Four ranks hold two heads twice: each of eight targets is written by one of the two, four each."""
    sources = shard(6, [0], [(0, 1), (0, 1), (1, 1), (1, 1)])
    targets = shard(6, [0], [(head // 4, 1) for head in range(8)])
    routes = plan_routes(sources, targets)
    assert [route.target for route in routes] == list(range(8))
    assert Counter(route.source for route in routes) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_what_cuts_another_rank_of_the_source_cuts_no_route_of_this_one() -> None:
    sources = shard(6, [0], [(0, 2)]) + shard(6, [0, 1, 4], [(2, 1), (3, 1)])
    first, *others = plan_routes(sources, shard(6, [0], [(0, 4)]))
    assert first == RankRoute(0, 0, LayerRange(0, 6), HeadRange(0, 2))
    assert len(others) == 3 * 2


def test_what_nobody_holds_has_no_route() -> None:
    routes = plan_routes(shard(3, [0], [(0, 2)]), shard(6, [0], [(0, 4)]))
    assert routes == (RankRoute(0, 0, LayerRange(0, 3), HeadRange(0, 2)),)
