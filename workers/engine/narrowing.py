"""Which tokens a draw chooses from: the lighter ones are left out, by min-p, then top-k, then top-p.

Each depends on its row alone, and keeps tokens that weigh exactly as much as the last that is kept.
"""

from collections.abc import Sequence

import torch

from workers.engine.runner import SampleParams

_HEAD_SIZE = 1024
"""Top-p almost always ends within so many tokens; sorting a whole vocabulary takes 15 times longer."""


def narrow(weights_RV: torch.Tensor, chosen: Sequence[SampleParams]) -> None:
    """
    Args: `weights_RV`: those of the heaviest token of each row are 1.

    Mutates: zeroes, in `weights_RV`, all that its row's parameters leave out.
    """
    _keep_min_p(weights_RV, [params.min_p for params in chosen])
    _keep_top_k(weights_RV, [params.top_k for params in chosen])
    _keep_top_p(weights_RV, [params.top_p for params in chosen])


def _keep_min_p(weights_RV: torch.Tensor, min_ps: Sequence[float]) -> None:
    """Zeroes what weighs less than a share p of the heaviest token."""
    rows = [row for row, min_p in enumerate(min_ps) if min_p > 0]
    if rows:
        weights_RV[rows] = _from(weights_RV[rows], _column([min_ps[row] for row in rows], weights_RV))


def _keep_top_k(weights_RV: torch.Tensor, top_ks: Sequence[int]) -> None:
    """Zeroes all but the k heaviest tokens."""
    rows = [row for row, top_k in enumerate(top_ks) if 0 < top_k < weights_RV.shape[-1]]
    if not rows:
        return
    kept_RV = weights_RV[rows]
    last_R1 = torch.tensor([[top_ks[row] - 1] for row in rows], device=weights_RV.device)
    heaviest = kept_RV.topk(max(top_ks[row] for row in rows), dim=-1).values
    weights_RV[rows] = _from(kept_RV, heaviest.gather(-1, last_R1))


def _keep_top_p(weights_RV: torch.Tensor, top_ps: Sequence[float]) -> None:
    """Zeroes all but the fewest heaviest tokens that hold a share p."""
    rows = [row for row, top_p in enumerate(top_ps) if top_p < 1]
    if not rows:
        return
    kept_RV = weights_RV[rows]
    wanted_R1 = kept_RV.sum(dim=-1, keepdim=True) * _column([top_ps[row] for row in rows], kept_RV)
    head = kept_RV.topk(min(_HEAD_SIZE, kept_RV.shape[-1]), dim=-1).values
    least_R1 = _lightest_of(wanted_R1, head)
    is_flat_R = head.sum(dim=-1) < wanted_R1[:, 0]
    if bool(is_flat_R.any()):
        heaviest = kept_RV[is_flat_R].sort(dim=-1, descending=True).values
        least_R1[is_flat_R] = _lightest_of(wanted_R1[is_flat_R], heaviest)
    weights_RV[rows] = _from(kept_RV, least_R1)


def _lightest_of(wanted_R1: torch.Tensor, heaviest: torch.Tensor) -> torch.Tensor:
    """The last of the fewest weights, the heaviest first, that hold what is wanted."""
    before = heaviest.cumsum(dim=-1) - heaviest
    num_kept_R1 = (before < wanted_R1).sum(dim=-1, keepdim=True).clamp(min=1)
    return heaviest.gather(-1, num_kept_R1 - 1)


def _from(weights_RV: torch.Tensor, least_R1: torch.Tensor) -> torch.Tensor:
    return weights_RV.masked_fill(weights_RV < least_R1, 0.0)


def _column(values: list[float], beside_RV: torch.Tensor) -> torch.Tensor:
    return beside_RV.new_tensor(values)[:, None]
