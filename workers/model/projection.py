"""A matrix of the model with its bias: the contract, and its plain form."""

from typing import Protocol

import torch
from torch.nn.functional import linear


class Projection(Protocol):
    """Takes rows of I numbers to rows of O, both in the model's dtype and on its device.

    A row of the answer depends on its row alone, but for rounding: who else is in a step changes no token.
    """

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor: ...


class FullProjection:
    """The matrix as it is. `weight_OI` may be another's too: a tied head is the embedding."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        self.weight_OI = weight_OI
        self.bias_O = bias_O

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        return linear(x_TI, self.weight_OI, self.bias_O)
