"""Sampling: one token for each row of logits, by its own parameters.

A draw is one uniform number against the row's cumulative weights in vocabulary order. The number is a hash of
seed and position, and which tokens are kept depends on the row alone, so neither batch, nor order, nor worker
changes what is drawn. What requests change in their logits first is `logit_edits`, what a draw chooses from
`narrowing`. Log-probabilities are those of the logits as they came: the model's own, whatever was asked.
"""

import hashlib
import struct
from collections.abc import Sequence

import torch

from workers.engine.draw import Draw
from workers.engine.logit_edits import edit
from workers.engine.logprob_records import make_records
from workers.engine.narrowing import narrow
from workers.engine.runner import RowResult


@torch.inference_mode()
def sample(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> list[RowResult]:
    """One token for each row, in order; a row whose logits are not finite comes back as failed.

    Logits of minus infinity exclude a token; a row of nothing else is not finite.

    Mutates: `logits_BV`.
    """
    told = [row for row, draw in enumerate(draws) if draw.params.logprobs is not None]
    raw_RV = logits_BV[told] if told else logits_BV[:0]
    best_BV = logits_BV.max(dim=-1)  # NaN and infinity win every comparison, so they show here
    is_finite_B = best_BV.values.isfinite()
    if any(draw.is_edited for draw in draws):
        edit(logits_BV, draws)
        best_BV = logits_BV.max(dim=-1)
        is_finite_B = is_finite_B & best_BV.values.isfinite()
    tokens_B = best_BV.indices
    random_rows = [row for row, draw in enumerate(draws) if draw.params.temperature > 0]
    if random_rows:
        rows_R = torch.tensor(random_rows, device=logits_BV.device)
        drawn = [draws[row] for row in random_rows]
        tokens_B[rows_R] = _draw(logits_BV[rows_R], best_BV.values[rows_R], drawn)
    records = _records(raw_RV, tokens_B, draws, told)
    found = torch.stack((tokens_B, is_finite_B.long())).tolist()  # one copy off the device
    return [
        RowResult(draw.key, [token], records.get(row, b"")) if is_finite else RowResult(draw.key, failed=True)
        for row, (draw, token, is_finite) in enumerate(zip(draws, *found, strict=True))
    ]


def uniform(seed: int, position: int) -> float:
    """A number in (0, 1), the same everywhere for the same seed and position."""
    key = struct.pack("<QQ", seed % 2**64, position)
    number = int.from_bytes(hashlib.blake2b(key, digest_size=5).digest(), "little")
    return (number + 0.5) / 2**40


def _draw(logits_RV: torch.Tensor, best_R: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    device = logits_RV.device
    temperatures_R = _doubles([draw.params.temperature for draw in draws], device)
    weights_RV = ((logits_RV - best_R[:, None]).double() / temperatures_R[:, None]).exp_()
    narrow(weights_RV, [draw.params for draw in draws])
    sums_RV = weights_RV.cumsum(dim=-1)
    targets_R = (
        _doubles([uniform(draw.params.seed, draw.position) for draw in draws], device) * sums_RV[:, -1]
    )
    return torch.searchsorted(sums_RV, targets_R[:, None], right=True)[:, 0]


def _records(
    raw_RV: torch.Tensor, tokens_B: torch.Tensor, draws: Sequence[Draw], told: list[int]
) -> dict[int, bytes]:
    """The records of the rows of which they were asked for."""
    if not told:
        return {}
    num_best = [draws[row].params.logprobs or 0 for row in told]
    return dict(zip(told, make_records(raw_RV, tokens_B[told], num_best), strict=True))


def _doubles(values: list[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)
