"""A matrix of the model with its bias: the contracts, and its plain form."""

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


class WritingProjection(Projection, Protocol):
    """One whose answer needs no memory of its own."""

    def write_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        """Puts the answer into `y_TO`.

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
        return self._multiply(x_TI, None)

    def write_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        self._multiply(x_TI, y_TO)

    def add_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        y_TO.addmm_(x_TI, self.weight_IO)
        if self.bias_O is not None:
            y_TO.add_(self.bias_O)

    def _multiply(self, x_TI: torch.Tensor, out_TO: torch.Tensor | None) -> torch.Tensor:
        if self.bias_O is None:
            return torch.mm(x_TI, self.weight_IO, out=out_TO)
        return torch.addmm(self.bias_O, x_TI, self.weight_IO, out=out_TO)
