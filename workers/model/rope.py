"""Rotary positions: frequencies once per model, turns once per step, applied in place to queries and keys."""

import math

import torch

from workers.model.config import Rope


def rope_frequencies(rope: Rope, head_dim: int, device: torch.device) -> torch.Tensor:
    """Radians per position, one for each pair of a head's halves: `frequencies_D/2`.

    Source: RoFormer (arXiv 2104.09864), section 3.2; Llama 3 (arXiv 2407.21783) for its scaling.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: torch.Tensor, rope: Rope) -> torch.Tensor:
    turns = rope.original_context * frequencies / (2 * math.pi)  # within the context it was trained on
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1.0 - blend) * frequencies / rope.factor + blend * frequencies


class RopeTurns:
    """Cosines and sines of one step's positions, shaped to multiply heads: `[T, 1, D]`."""

    def __init__(self, positions_T: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype) -> None:
        angles = positions_T[:, None].float() * frequencies
        sin = angles.sin()
        self.cos_T1D = angles.cos().repeat(1, 2).to(dtype)[:, None]
        self.sin_T1D = torch.cat((-sin, sin), dim=-1).to(dtype)[:, None]

    def apply(self, heads_TXD: torch.Tensor) -> None:
        """Turns every head by its token's position.

        Mutates: `heads_TXD`.
        """
        half = heads_TXD.shape[-1] // 2
        swapped_TXD = heads_TXD.roll(half, dims=-1)
        heads_TXD.mul_(self.cos_T1D).addcmul_(swapped_TXD, self.sin_T1D)
