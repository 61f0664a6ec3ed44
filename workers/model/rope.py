"""Rotary positions: frequencies once per model, turns once per step, applied in place to queries and keys."""

import math

import torch

from workers.model.rope_config import Rope


def rope_frequencies(rope: Rope, head_dim: int, device: torch.device) -> torch.Tensor:
    """Radians per position, one for each pair of a head's halves: `frequencies_D/2`.

    Source: RoFormer (arXiv 2104.09864), section 3.2; Llama 3 (arXiv 2407.21783) and YaRN (arXiv 2309.00071),
    section 3.2, for their scaling.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    match rope.kind:
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _stretched(frequencies, rope.factor, _llama3_kept(frequencies, rope))
        case "yarn":
            return _stretched(frequencies, rope.factor, _yarn_kept(frequencies, rope, head_dim))
        case _:
            return frequencies


def _stretched(frequencies: torch.Tensor, factor: float, kept: torch.Tensor) -> torch.Tensor:
    """`kept` is the share of each frequency that stays as it is; the rest is divided by `factor`."""
    return (1.0 - kept) * frequencies / factor + kept * frequencies


def _llama3_kept(frequencies: torch.Tensor, rope: Rope) -> torch.Tensor:
    turns = rope.original_context * frequencies / (2 * math.pi)  # within the context it was trained on
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return kept.clamp(0.0, 1.0)


def _yarn_kept(frequencies: torch.Tensor, rope: Rope, head_dim: int) -> torch.Tensor:
    def pair_that_turns(num_turns: float) -> float:
        exponent = math.log(rope.original_context / (num_turns * 2 * math.pi)) / math.log(rope.theta)
        return exponent * head_dim / 2

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.is_truncated:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    pairs = torch.arange(len(frequencies), dtype=torch.float32, device=frequencies.device)
    return 1.0 - ((pairs - first) / width).clamp(0.0, 1.0)


class RopeTurns:
    """Cosines and sines of one step's positions, shaped to multiply heads: `[T, 1, D]`."""

    def __init__(
        self, positions_T: torch.Tensor, frequencies: torch.Tensor, scale: float, dtype: torch.dtype
    ) -> None:
        angles = positions_T[:, None].float() * frequencies
        cos, sin = angles.cos() * scale, angles.sin() * scale
        self.cos_T1D = cos.repeat(1, 2).to(dtype)[:, None]
        self.sin_T1D = torch.cat((-sin, sin), dim=-1).to(dtype)[:, None]

    def apply(self, heads_TXD: torch.Tensor) -> None:
        """Turns every head by its token's position.

        Mutates: `heads_TXD`.
        """
        half = heads_TXD.shape[-1] // 2
        swapped_TXD = heads_TXD.roll(half, dims=-1)
        heads_TXD.mul_(self.cos_T1D).addcmul_(swapped_TXD, self.sin_T1D)
