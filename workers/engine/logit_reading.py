"""What the logits of a step mean for its rows: what their tokens were worth, and what comes next."""

from collections.abc import Sequence
from itertools import chain, islice

import msgspec
import torch

from workers.engine.draw import accept, draws_of
from workers.engine.logprob_records import make_records
from workers.engine.runner import RowResult, ScheduledSequence
from workers.engine.sampler import sample


def read_logits(logits_BV: torch.Tensor, rows: Sequence[ScheduledSequence]) -> list[RowResult]:
    """A result for each row that wants one, in their order.

    Args: `logits_BV`: for each of `rows` as many as its `num_logits`, one row after the other.

    Mutates: `logits_BV`.
    """
    wanting = [row for row in rows if row.num_logits]
    scored = [row for row in wanting if row.scores is not None and row.scores.targets]
    if not scored:
        return _draw(logits_BV, wanting)
    scored_places, drawn_places = _places(wanting)
    by_key = {result.key: result for result in _score(logits_BV[scored_places], scored)}
    for result in _draw(logits_BV[drawn_places], wanting):
        by_key[result.key] = _join(by_key.get(result.key), result)
    return [by_key[row.key] for row in wanting]


def _places(rows: Sequence[ScheduledSequence]) -> tuple[list[int], list[int]]:
    """Which logits are scored, and which are drawn from: the last ones of a row that samples."""
    scored: list[int] = []
    drawn: list[int] = []
    end = 0
    for row in rows:
        first, end = end, end + row.num_logits
        scored += range(first, end - row.num_draws)
        drawn += range(end - row.num_draws, end)
    return scored, drawn


def _draw(logits_DV: torch.Tensor, rows: Sequence[ScheduledSequence]) -> list[RowResult]:
    """
    Args: `logits_DV`: for each of `rows` as many as its draws.
    """
    drawing = [row for row in rows if row.num_draws]
    draws = [draw for row in drawing for draw in draws_of(row)]
    drawn = iter(sample(logits_DV, draws) if draws else [])
    return [accept(row, list(islice(drawn, row.num_draws))) for row in drawing]


@torch.inference_mode()
def _score(logits_RV: torch.Tensor, rows: Sequence[ScheduledSequence]) -> list[RowResult]:
    """
    Args: `rows`: each has scores, and logits for its targets.
    """
    wanted = [row.scores for row in rows if row.scores is not None]
    targets = [token for scores in wanted for token in scores.targets]
    num_best = list(chain.from_iterable([scores.num_best] * len(scores.targets) for scores in wanted))
    records = iter(make_records(logits_RV, torch.tensor(targets, device=logits_RV.device), num_best))
    is_finite = iter(logits_RV.max(dim=-1).values.isfinite().tolist())
    return [
        RowResult(
            row.key,
            prompt_logprobs=b"".join(islice(records, len(scores.targets))),
            failed=not all(list(islice(is_finite, len(scores.targets)))),
        )
        for row, scores in zip(rows, wanted, strict=True)
    ]


def _join(scored: RowResult | None, drawn: RowResult) -> RowResult:
    if scored is None or drawn.failed:
        return drawn
    if scored.failed:
        return scored
    return msgspec.structs.replace(drawn, prompt_logprobs=scored.prompt_logprobs)
