"""What the logits of a step mean for its rows: what their tokens were worth, and what comes next."""

from collections.abc import Sequence
from itertools import chain, islice

import msgspec
import torch

from workers.engine.draw import draw_of
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
    draws = [draw_of(row, row.sample) for row in wanting if row.sample is not None]
    if not scored:
        return sample(logits_BV, draws) if draws else []
    scored_places, drawn_places = _places(wanting)
    by_key = {result.key: result for result in _score(logits_BV[scored_places], scored)}
    drawn = sample(logits_BV[drawn_places], draws) if draws else []
    for result in drawn:
        by_key[result.key] = _join(by_key.get(result.key), result)
    return [by_key[row.key] for row in wanting]


def _places(rows: Sequence[ScheduledSequence]) -> tuple[list[int], list[int]]:
    """Which logits are scored, and which are drawn from: the last of a row that samples."""
    scored: list[int] = []
    drawn: list[int] = []
    end = 0
    for row in rows:
        first, end = end, end + row.num_logits
        num_drawn = int(row.sample is not None)
        scored += range(first, end - num_drawn)
        drawn += range(end - num_drawn, end)
    return scored, drawn


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
