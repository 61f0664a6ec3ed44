"""Every layer, head and column of a model is some rank's, and a model that cannot be divided is refused."""

import msgspec
import pytest

from proto.errors import InvalidSetting
from proto.layout import LayerRange
from tests.tiny_model import write_tiny
from workers.model.config import ModelConfig, read_config
from workers.model.share import Share, whole_of
from workers.ranks.grid import Grid, split_evenly


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """8 query heads and 4 KV heads, 4 layers."""
    return read_config(write_tiny(tmp_path_factory.mktemp("tiny"), hidden=32, vocab=300))


def shape(config: ModelConfig, **fields: int) -> ModelConfig:
    return msgspec.structs.replace(config, **fields)


def shares(grid: Grid, config: ModelConfig) -> list[Share]:
    grid.check(config)
    return [grid.share_of(rank, config) for rank in range(grid.num_ranks)]


def test_the_leader_is_of_the_last_stage_and_every_rank_has_a_place_of_its_own(tiny: ModelConfig) -> None:
    grid = Grid(2, 3)
    places = [grid.place_of(rank) for rank in range(grid.num_ranks)]
    assert places[0] == (2, 0)
    assert set(places) == {(stage, place) for stage in range(3) for place in range(2)}
    assert [grid.rank_at(*place) for place in places] == list(range(6))
    found = shares(grid, tiny)
    assert [each.has_head for each in found] == [True, True, False, False, False, False]
    assert [each.has_embedding for each in found] == [False, False, False, False, True, True]
    assert [each.adds_biases for each in found] == [True, False] * 3


def test_one_rank_holds_the_whole_model(tiny: ModelConfig) -> None:
    assert shares(Grid(), tiny) == [whole_of(tiny)]
    assert whole_of(tiny).narrow(tiny) == tiny


@pytest.mark.parametrize(("num_layers", "pp"), [(30, 2), (5, 2), (4, 4), (7, 3)])
def test_stages_hold_runs_of_layers_that_differ_by_one_at_most(
    tiny: ModelConfig, num_layers: int, pp: int
) -> None:
    runs = [share.layers for share in reversed(shares(Grid(1, pp), shape(tiny, num_layers=num_layers)))]
    assert [layer for run in runs for layer in range(run.first, run.end)] == list(range(num_layers))
    assert max(run.num_layers for run in runs) - min(run.num_layers for run in runs) <= 1


def test_thirty_layers_by_two_are_fifteen_each(tiny: ModelConfig) -> None:
    last, first = shares(Grid(1, 2), shape(tiny, num_layers=30))
    assert (first.layers, last.layers) == (LayerRange(0, 15), LayerRange(15, 15))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp"), [(8, 4, 2), (8, 4, 4), (8, 4, 8), (8, 2, 4), (9, 3, 3), (9, 3, 9), (8, 1, 4)]
)
def test_a_slice_holds_the_kv_heads_that_its_query_heads_see(
    tiny: ModelConfig, heads: int, kv_heads: int, tp: int
) -> None:
    config = shape(tiny, num_heads=heads, num_kv_heads=kv_heads, feed_forward_size=65, vocab_size=301)
    slices = shares(Grid(tp, 1), config)
    assert [head for each in slices for head in range(each.heads.first, each.heads.end)] == list(range(heads))
    for each in slices:
        queries = range(each.heads.first, each.heads.end)
        seen = [head // (heads // kv_heads) for head in queries]
        assert sorted(set(seen)) == list(range(each.kv_heads.first, each.kv_heads.end))
        assert each.heads.num % each.kv_heads.num == 0
        ours = [seen.count(head) for head in set(seen)]
        assert len(set(ours)) == 1, "the attention of a slice has as many query heads for each KV head"
    for columns, num in (("feed_forward", 65), ("vocab", 301)):
        runs = [getattr(each, columns) for each in slices]
        assert [at for run in runs for at in range(run.first, run.end)] == list(range(num))


@pytest.mark.parametrize(
    ("fields", "grid", "reason"),
    [
        (
            {"num_heads": 9, "num_kv_heads": 3},
            Grid(2, 1),
            r"worker\.tp: 9 query heads and 3 KV heads cannot be shared among 2 ranks; 1, 3 or 9 can",
        ),
        ({"num_heads": 12, "num_kv_heads": 4}, Grid(6, 1), r"among 6 ranks; 1, 2, 4 or 12 can"),
        ({"num_heads": 4, "num_kv_heads": 4}, Grid(8, 1), r"among 8 ranks; 1, 2 or 4 can"),
        ({"num_heads": 1, "num_kv_heads": 1}, Grid(2, 2), r"among 2 ranks; 1 can"),
        ({"num_layers": 3}, Grid(1, 4), r"worker\.pp: 3 layers cannot be divided among 4 stages"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_with_its_numbers(
    tiny: ModelConfig, fields: dict[str, int], grid: Grid, reason: str
) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        grid.check(shape(tiny, **fields))


def test_parts_of_a_number_are_as_even_as_can_be() -> None:
    assert [split_evenly(7, 3, part) for part in range(3)] == [(0, 3), (3, 2), (5, 2)]
