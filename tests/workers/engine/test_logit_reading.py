"""Rows of logits find their way to the rows of a step, whichever of them are scored and drawn from."""

import math

import pytest
import torch

from proto.logprobs import split_records, unpack_logprobs
from workers.engine.logit_reading import read_logits
from workers.engine.runner import PromptScores, RowResult, SampleParams, ScheduledSequence

VOCAB = 30
GREEDY = SampleParams()


def row(key: int, targets: list[int] | None, sample: SampleParams | None) -> ScheduledSequence:
    """One that has a token for each target, and one more if it is drawn from."""
    tokens = [1] * (len(targets or [1]) + (sample is not None))
    scores = None if targets is None else PromptScores(targets, 2)
    return ScheduledSequence(tokens, 0, [0], sample, key, scores)


ROWS = [
    row(30, None, None),
    row(20, None, GREEDY),
    row(25, [5, 6, 7], None),
    row(10, [], GREEDY),
    row(15, [8, 9], GREEDY),
    row(5, None, SampleParams(logprobs=1)),
]


def some_logits() -> torch.Tensor:
    num_rows = sum(each.num_logits for each in ROWS)
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(3))


def targets_told(result: RowResult, logits_BV: torch.Tensor, first: int, targets: list[int]) -> bool:
    """Whether its records are of these targets at these rows of logits."""
    records = split_records(result.prompt_logprobs, len(targets))
    expected = [float(logits_BV[first + place].log_softmax(-1)[each]) for place, each in enumerate(targets)]
    return [unpack_logprobs(record).logprob for record in records] == pytest.approx(expected, abs=1e-5)


def test_each_row_is_told_of_its_own_logits_in_the_order_of_the_rows() -> None:
    logits_BV = some_logits()
    results = read_logits(logits_BV.clone(), ROWS)
    assert [result.key for result in results] == [20, 25, 10, 15, 5]
    best = logits_BV.argmax(dim=-1).tolist()
    assert [result.tokens for result in results] == [[best[0]], [], [best[4]], [best[7]], [best[8]]]
    assert targets_told(results[1], logits_BV, 1, [5, 6, 7])
    assert targets_told(results[3], logits_BV, 5, [8, 9])
    told = [bool(result.logprobs) for result in results]
    assert told == [False, False, False, False, True]


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_of_which_any_logits_are_not_finite_fails_alone(place: int, bad: float) -> None:
    whole = read_logits(some_logits(), ROWS)
    logits_BV = some_logits()
    logits_BV[place, 17] = bad
    found = read_logits(logits_BV, ROWS)
    failed = [0, 1, 1, 1, 2, 3, 3, 3, 4][place]
    assert [result.failed for result in found] == [index == failed for index in range(5)]
    assert [each for each in found if not each.failed] == whole[:failed] + whole[failed + 1 :]


def drafted_row(drafts: list[int]) -> ScheduledSequence:
    """One that decodes, and tries `drafts`."""
    return ScheduledSequence([1, *drafts], 4, [0], SampleParams(logprobs=1), 7, num_drafts=len(drafts))


@pytest.mark.parametrize("num_right", range(4))
def test_a_row_gives_what_is_drawn_up_to_the_first_draft_that_is_wrong(num_right: int) -> None:
    logits_BV = some_logits()[:4]
    best = logits_BV.argmax(dim=-1).tolist()
    drafts = [token if place < num_right else (token + 1) % VOCAB for place, token in enumerate(best[:3])]
    other = row(20, None, GREEDY)
    results = read_logits(torch.cat((logits_BV, logits_BV[:1])), [drafted_row(drafts), other])
    assert [result.tokens for result in results] == [best[: num_right + 1], best[:1]]
    records = split_records(results[0].logprobs, num_right + 1)
    told = [unpack_logprobs(record).best[0][0] for record in records]
    assert told == best[: num_right + 1]


@pytest.mark.parametrize("bad_place", range(4))
def test_logits_that_are_not_finite_after_a_draft_are_left_to_the_step_that_begins_there(
    bad_place: int,
) -> None:
    logits_BV = some_logits()[:4]
    best = logits_BV.argmax(dim=-1).tolist()
    logits_BV[bad_place] = math.nan
    (result,) = read_logits(logits_BV, [drafted_row(best[:3])])
    assert result.failed == (bad_place == 0)
    assert result.tokens == best[:bad_place]
