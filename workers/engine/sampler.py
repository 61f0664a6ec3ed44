"""Sampling: one token for each row of logits, by its own parameters.

A draw is one uniform number against the row's cumulative weights in vocabulary order. The number is a hash of
seed and position, and which tokens are kept depends on the row alone, so neither batch, nor order, nor worker
changes what is drawn.
"""

import hashlib
import struct
from collections.abc import Sequence

import msgspec
import torch

from workers.engine.runner import SampledToken, SampleParams

_HEAD_SIZE = (
    1024  # top-p almost always ends within so many tokens; sorting a whole vocabulary takes 15 times longer
)


class Draw(msgspec.Struct, frozen=True):
    """What one row of logits is for: the token at `position` of the sequence with this key."""

    key: int
    params: SampleParams
    position: int


@torch.inference_mode()
def sample(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> list[SampledToken]:
    """One token for each row, in order; a row whose logits are not finite comes back as failed.

    Logits of minus infinity exclude a token; a row of nothing else is not finite.
    """
    best_BV = logits_BV.max(dim=-1)  # NaN and infinity win every comparison, so they show here
    tokens_B = best_BV.indices
    random_rows = [row for row, draw in enumerate(draws) if draw.params.temperature > 0]
    if random_rows:
        rows_R = torch.tensor(random_rows, device=logits_BV.device)
        drawn = [draws[row] for row in random_rows]
        tokens_B[rows_R] = _draw(logits_BV[rows_R], best_BV.values[rows_R], drawn)
    is_finite_B = best_BV.values.isfinite()
    found = torch.stack((tokens_B, is_finite_B.long())).tolist()  # one copy off the device
    return [
        SampledToken(draw.key, token if is_finite else 0, failed=not is_finite)
        for draw, token, is_finite in zip(draws, *found, strict=True)
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
    _keep_top_k(weights_RV, [draw.params.top_k for draw in draws])
    _keep_top_p(weights_RV, [draw.params.top_p for draw in draws])
    sums_RV = weights_RV.cumsum(dim=-1)
    targets_R = (
        _doubles([uniform(draw.params.seed, draw.position) for draw in draws], device) * sums_RV[:, -1]
    )
    return torch.searchsorted(sums_RV, targets_R[:, None], right=True)[:, 0]


def _keep_top_k(weights_RV: torch.Tensor, top_ks: Sequence[int]) -> None:
    """Zeroes all but the k heaviest tokens; those as heavy as the k-th stay.

    Mutates: `weights_RV`.
    """
    rows = [row for row, top_k in enumerate(top_ks) if 0 < top_k < weights_RV.shape[-1]]
    if not rows:
        return
    kept_RV = weights_RV[rows]
    last_R1 = torch.tensor([[top_ks[row] - 1] for row in rows], device=weights_RV.device)
    heaviest = kept_RV.topk(max(top_ks[row] for row in rows), dim=-1).values
    weights_RV[rows] = _from(kept_RV, heaviest.gather(-1, last_R1))


def _keep_top_p(weights_RV: torch.Tensor, top_ps: Sequence[float]) -> None:
    """Zeroes all but the fewest heaviest tokens that hold a share p; those as heavy as the last stay.

    Mutates: `weights_RV`.
    """
    rows = [row for row, top_p in enumerate(top_ps) if top_p < 1]
    if not rows:
        return
    kept_RV = weights_RV[rows]
    wanted_R1 = (
        kept_RV.sum(dim=-1, keepdim=True) * _doubles([top_ps[row] for row in rows], kept_RV.device)[:, None]
    )
    head = kept_RV.topk(min(_HEAD_SIZE, kept_RV.shape[-1]), dim=-1).values
    if bool((head.sum(dim=-1, keepdim=True) < wanted_R1).any()):
        head = kept_RV.sort(dim=-1, descending=True).values
    before = head.cumsum(dim=-1) - head
    num_kept_R1 = (before < wanted_R1).sum(dim=-1, keepdim=True).clamp(min=1)
    weights_RV[rows] = _from(kept_RV, head.gather(-1, num_kept_R1 - 1))


def _from(weights_RV: torch.Tensor, least_R1: torch.Tensor) -> torch.Tensor:
    return weights_RV.masked_fill(weights_RV < least_R1, 0.0)


def _doubles(values: list[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)
