"""The matrix that makes logits: the largest, and on a CPU worth a layout of its own.

With tied embeddings it is the embedding, of which a token looks up a row, so that a copy in another layout
costs memory. It pays: eight rows take a third of the time, and 32 little more than half.
"""

import torch

from workers.model.huge_pages import move_packed
from workers.model.projection import FullProjection, Projection

_ROWS = 32  # for which oneDNN chooses the layout: it serves fewer and more alike


def project_head(weight_VM: torch.Tensor) -> Projection:
    """`weight_VM` may be another's too: a tied head is the embedding."""
    is_cpu_float32 = weight_VM.device.type == "cpu" and weight_VM.dtype == torch.float32
    if is_cpu_float32 and torch._C._has_mkldnn:
        return PackedProjection(weight_VM)
    return FullProjection(weight_VM.t(), None)


class PackedProjection:
    """A matrix of float32, copied into the blocks that oneDNN multiplies. One row alone gains nothing."""

    def __init__(self, weight_OI: torch.Tensor) -> None:
        self._packed = move_packed(torch.ops.mkldnn._reorder_linear_weight(weight_OI, _ROWS))

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """The operands are those that torch's own compiler emits."""
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x_TI, self._packed, None, "none", [], ""
        )
        return found

    def add_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        y_TO.add_(self(x_TI))
