"""The norm of a model's rows: each is divided by the root of its mean square."""

import torch
from torch.nn.functional import rms_norm


class RmsNorm:
    """Over the last dimension; `weight` fits the last ones.

    Source: Root Mean Square Layer Normalization (arXiv 1910.07467), section 3.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self._shape = (size,)
        self.weight = weight
        self._eps = eps
        self._is_one_kernel = weight.device.type != "cpu"
        self._root_scaled = weight.float() * size**0.5
        self._least = torch.tensor((size * eps) ** 0.5, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_one_kernel:
            return rms_norm(x, self._shape, None, self._eps) * self.weight
        # On a CPU torch composes it of ten operators, each of which costs a small step more than its sums do.
        length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x / length.hypot_(self._least)).mul_(self._root_scaled).to(x.dtype)
