"""What requests change in their rows of logits before a token is drawn, for all rows of a step at once.

```
allowed ──► banned ──► bias ──► repetition ──► presence, frequency
```
Excluded tokens have minus infinity from the first two on, which nothing after them lifts. Whatever looks at
the model's own distribution (log-probabilities) has to look before.
"""

import math
from array import array
from collections.abc import Sequence

import torch

from workers.engine.draw import Draw


def edit(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> None:
    """
    Mutates: the rows of `logits_BV` whose draw asks for it.
    """
    _keep_allowed(logits_BV, draws)
    _ban(logits_BV, draws)
    _add_bias(logits_BV, draws)
    _penalise(logits_BV, draws)


def _keep_allowed(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> None:
    masks = {row: draw.allowed for row, draw in enumerate(draws) if draw.allowed is not None}
    if not masks:
        return
    device, num_tokens = logits_BV.device, logits_BV.shape[-1]
    num_bytes = -(-num_tokens // 8)
    joined = bytearray().join(mask[:num_bytes].ljust(num_bytes, b"\0") for mask in masks.values())
    bytes_R8 = torch.frombuffer(joined, dtype=torch.uint8).to(device).view(len(masks), num_bytes, 1)
    bits_RV = (bytes_R8 >> torch.arange(8, dtype=torch.uint8, device=device) & 1).flatten(1)[:, :num_tokens]
    rows_R = torch.tensor(list(masks), device=device)
    logits_BV[rows_R] = logits_BV[rows_R].masked_fill(bits_RV == 0, -math.inf)


def _ban(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> None:
    """A ban that leaves nothing yields: ends that are all that a grammar allows may come early."""
    rows = [row for row, draw in enumerate(draws) if draw.banned]
    if not rows:
        return
    device = logits_BV.device
    rows_R = torch.tensor(rows, device=device)
    before_RV = logits_BV[rows_R]
    banned = [(place, token) for place, row in enumerate(rows) for token in draws[row].banned]
    places_X, tokens_X = torch.tensor(banned, device=device).unbind(dim=1)
    after_RV = before_RV.index_put((places_X, tokens_X), before_RV.new_tensor(-math.inf))
    holds_R1 = after_RV.max(dim=-1, keepdim=True).values > -math.inf
    logits_BV[rows_R] = torch.where(holds_R1, after_RV, before_RV)


def _add_bias(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> None:
    biases = [(row, *pair) for row, draw in enumerate(draws) for pair in draw.params.bias.items()]
    if not biases:
        return
    rows, tokens, values = zip(*biases, strict=True)
    device = logits_BV.device
    places = (torch.tensor(rows, device=device), torch.tensor(tokens, device=device))
    logits_BV.index_put_(places, logits_BV.new_tensor(values), accumulate=True)


def _penalise(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> None:
    """
    Source: repetition as transformers' `RepetitionPenaltyLogitsProcessor`, the others as OpenAI's API
    reference, "Frequency and presence penalties".
    """
    counted = {row: draw.counts for row, draw in enumerate(draws) if draw.counts is not None}
    if not any(len(counts.tokens) for counts in counted.values()):
        return
    device = logits_BV.device
    sizes = torch.tensor([len(counts.tokens) for counts in counted.values()])
    rows_X = torch.tensor(list(counted)).repeat_interleave(sizes).to(device)
    tokens_X = _joined([counts.tokens for counts in counted.values()], torch.int64).to(device)
    counts_X = _joined([counts.counts for counts in counted.values()], torch.float32).to(device)
    chosen = [draws[row].params for row in counted]
    penalties = [(params.repetition, params.presence, params.frequency) for params in chosen]
    repetition_X, presence_X, frequency_X = (
        torch.tensor(penalties).repeat_interleave(sizes, dim=0).to(device).unbind(dim=1)
    )
    found_X = logits_BV[rows_X, tokens_X]
    found_X = torch.where(found_X < 0, found_X * repetition_X, found_X / repetition_X)
    logits_BV[rows_X, tokens_X] = found_X - presence_X * (counts_X > 0) - frequency_X * counts_X


def _joined(arrays: Sequence["array[int]"] | Sequence["array[float]"], dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray().join(arrays), dtype=dtype)
