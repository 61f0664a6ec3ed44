"""A matrix of the model with its bias: the contract, and its plain form."""

from typing import Protocol

import torch


class Projection(Protocol):
    """Takes rows of I numbers to rows of O, both in the model's dtype and on its device.

    A row of the answer depends on its row alone, but for rounding: who else is in a step changes no token.
    """

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor: ...

    def add_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        """Adds the answer to `y_TO`.

        Mutates: `y_TO`.
        """
        ...


class FullProjection:
    """The matrix as it is, its numbers in whatever order. `weight_IO` may be another's too: a tied head's is
    the embedding's."""

    def __init__(self, weight_IO: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        self.bias_O = bias_O
        self.weight_IO = weight_IO

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        if self.bias_O is None:
            return torch.mm(x_TI, self.weight_IO)
        return torch.addmm(self.bias_O, x_TI, self.weight_IO)

    def add_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        y_TO.addmm_(x_TI, self.weight_IO)
        if self.bias_O is not None:
            y_TO.add_(self.bias_O)
