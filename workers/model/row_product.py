"""A matrix in 8 bits for one row alone: torch's weighed sum of an embedding's rows is that product.

A row for each input, a byte for each output: one operator streams through them once, in the order in which
they lie, and takes numbers of 32 bits. oneDNN's product of one row waits for its own preparations.
"""

import torch

from workers.model.weight_memory import WeightMemory

_ZERO = 128  # what stands for 0: an embedding's numbers have no sign
_SCALE_AND_ZERO = torch.tensor([1.0, -_ZERO], dtype=torch.float32, device="cpu").view(torch.uint8)
"""The end of each row: what its numbers are multiplied with, and what is added then."""
_SUM = 0
# Named in full: torch looks through all overloads of a short name at each call.
_sum_rows = torch.ops.quantized.embedding_bag_byte_rowwise_offsets.default


class RowProduct:
    """Made of a matrix in int8. The rows are summed in as many parts as threads, since a part is one's."""

    def __init__(self, weight_OI: torch.Tensor, memory: WeightMemory) -> None:
        num_outputs, num_inputs = weight_OI.shape
        device, num_parts = weight_OI.device, torch.get_num_threads()
        num_bytes = num_outputs + len(_SCALE_AND_ZERO)
        rows_IX = torch.empty((num_inputs, num_bytes), dtype=torch.uint8, device=device)
        rows_IX[:, :num_outputs] = weight_OI.view(torch.uint8).t() ^ _ZERO
        rows_IX[:, num_outputs:] = _SCALE_AND_ZERO
        self._rows_IX = memory.keep(rows_IX)
        self._inputs = torch.arange(num_inputs, dtype=torch.int32, device=device)
        self._firsts = torch.arange(num_parts, dtype=torch.int32, device=device) * num_inputs // num_parts

    def __call__(self, x_1I: torch.Tensor, scale_11: torch.Tensor) -> torch.Tensor:
        """The answer to `x_1I` times `scale_11`, all in float32."""
        parts_PO = _sum_rows(self._rows_IX, self._inputs, self._firsts, False, _SUM, False, x_1I.view(-1))
        return torch.mm(scale_11.expand(1, len(parts_PO)), parts_PO)
