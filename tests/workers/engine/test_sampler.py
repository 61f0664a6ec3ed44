"""A token is drawn by its row's own parameters, and by seed and position alone."""

import math

import pytest
import torch

from workers.engine.draw import Draw
from workers.engine.runner import RowResult, SampleParams
from workers.engine.sampler import sample, uniform

VOCAB = 2000
CHI_SQUARE_19_AT_ONE_IN_1000 = 43.8
PINNED = [0.5145811190982386, 0.2113296605616597, 0.9690663638343722]


def random_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def tokens_of(logits_BV: torch.Tensor, params: SampleParams, positions: range) -> list[int]:
    """One draw at each position, all from the first row of logits."""
    draws = [Draw(key=0, params=params, position=position) for position in positions]
    return [found.tokens[0] for found in sample(logits_BV[:1].expand(len(draws), -1), draws)]


MIXED = [
    SampleParams(),
    SampleParams(temperature=0.7, seed=11),
    SampleParams(temperature=1.0, top_k=5, seed=12),
    SampleParams(temperature=1.3, top_p=0.8, seed=13),
    SampleParams(temperature=1.0, top_k=300, top_p=0.9, seed=-14),
    SampleParams(temperature=5.0, top_p=0.999, seed=2**64 - 1),
]


def test_greedy_takes_the_largest_logit() -> None:
    logits_BV = random_logits(3)
    draws = [Draw(key, SampleParams(top_k=3, top_p=0.1, seed=key), 5) for key in range(3)]
    expected = [RowResult(key, [int(logits_BV[key].argmax())]) for key in range(3)]
    assert sample(logits_BV, draws) == expected


@pytest.mark.parametrize("params", MIXED)
def test_a_draw_is_the_same_alone_and_in_any_batch_and_order(params: SampleParams) -> None:
    logits_BV = random_logits(len(MIXED))
    row = MIXED.index(params)
    draws = [Draw(key, mixed, 100 + key) for key, mixed in enumerate(MIXED)]
    alone = sample(logits_BV[row : row + 1], [draws[row]])[0]
    assert sample(logits_BV, draws)[row] == alone
    assert sample(logits_BV.flip(0), draws[::-1])[len(MIXED) - 1 - row] == alone


def test_another_seed_or_position_draws_anew() -> None:
    logits_BV = random_logits(1)
    by_position = tokens_of(logits_BV, SampleParams(temperature=2.0, seed=1), range(50))
    other_seed = tokens_of(logits_BV, SampleParams(temperature=2.0, seed=2), range(50))
    assert len(set(by_position)) > 20
    assert by_position != other_seed


def test_the_uniform_numbers_are_these_for_ever() -> None:
    """A worker of another version has to draw the same tokens."""
    assert [uniform(0, 0), uniform(7, 41), uniform(-1, 3)] == PINNED
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)


def test_top_k_draws_only_from_the_k_largest() -> None:
    logits_BV = random_logits(1)
    allowed = set(logits_BV[0].topk(4).indices.tolist())
    assert set(tokens_of(logits_BV, SampleParams(temperature=3.0, top_k=4), range(300))) == allowed


@pytest.mark.parametrize("temperature", [1.0, 50.0])  # the second spreads beyond the sorted head
def test_top_p_draws_only_from_the_fewest_that_hold_the_share(temperature: float) -> None:
    logits_BV, top_p = random_logits(1), 0.6
    ordered = (logits_BV[0].double() / temperature).softmax(-1).sort(descending=True)
    num_kept = int((ordered.values.cumsum(-1) < top_p).sum()) + 1
    allowed = ordered.indices[:num_kept].tolist()
    found = set(tokens_of(logits_BV, SampleParams(temperature=temperature, top_p=top_p), range(2000)))
    assert found <= set(allowed)
    assert found & set(allowed[-(num_kept // 10 + 1) :]), "the lightest that are kept are drawn too"


def test_the_smallest_top_p_and_the_smallest_top_k_are_greedy() -> None:
    logits_BV = random_logits(1)
    best = int(logits_BV[0].argmax())
    for params in (SampleParams(5.0, top_k=1), SampleParams(5.0, top_p=1e-9), SampleParams(1e-6)):
        assert set(tokens_of(logits_BV, params, range(20))) == {best}


def test_draws_follow_the_distribution() -> None:
    logits_1V = torch.linspace(-2, 2, 20)[None]
    tokens = tokens_of(logits_1V, SampleParams(temperature=1.5, seed=3), range(4000))
    expected = (logits_1V[0].double() / 1.5).softmax(-1) * len(tokens)
    counts = torch.bincount(torch.tensor(tokens), minlength=20)
    assert float(((counts - expected) ** 2 / expected).sum()) < CHI_SQUARE_19_AT_ONE_IN_1000


def test_excluded_tokens_are_never_drawn() -> None:
    logits_BV = random_logits(1)
    logits_BV[0, 10:] = -math.inf
    for params in (SampleParams(9.0), SampleParams(9.0, top_k=50), SampleParams(9.0, top_p=0.99)):
        assert max(tokens_of(logits_BV, params, range(200))) < 10


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    for row, params in enumerate(MIXED):
        logits_BV = random_logits(len(MIXED))
        draws = [Draw(key, mixed, 9) for key, mixed in enumerate(MIXED)]
        whole = sample(logits_BV, draws)
        if bad == -math.inf:
            logits_BV[row] = bad
        else:
            logits_BV[row, 77] = bad
        found = sample(logits_BV, draws)
        assert found[row] == RowResult(row, failed=True), params
        assert found[:row] + found[row + 1 :] == whole[:row] + whole[row + 1 :]
