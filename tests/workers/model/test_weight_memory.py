"""Matrices lie apart from each other, on cache lines, and say what they said before."""

import pytest
import torch

from workers.model.huge_pages import move_packed
from workers.model.weight_memory import WeightMemory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_keep_their_numbers_beside_others(dtype: torch.dtype) -> None:
    memory = WeightMemory()
    matrices = [torch.randn(rows, columns).to(dtype) for rows, columns in [(3, 5), (1, 1), (70, 9), (4, 4)]]
    laid = [memory.lay_out(weight_OI) for weight_OI in matrices]
    for weight_OI, weight_IO in zip(matrices, laid, strict=True):
        assert torch.equal(weight_IO, weight_OI.t())
        assert weight_IO.data_ptr() % 64 == 0
        assert weight_IO.is_contiguous() == (dtype == torch.float32) or 1 in weight_IO.shape


def test_a_matrix_larger_than_a_mapping_has_one_of_its_own() -> None:
    memory = WeightMemory()
    small, large = torch.ones(8, 8), torch.full((5000, 4096), 2.0)
    laid = [memory.lay_out(each) for each in (small, large, small)]
    assert [float(each.mean()) for each in laid] == [1.0, 2.0, 1.0]


def test_packed_matrices_say_what_they_said_when_the_system_has_moved_them() -> None:
    """Small ones and one of many pages, with what lies between them in the same pages."""
    packed = [pack(num_outputs) for num_outputs in (16, 30_000, 48)]
    between = [torch.arange(1000) for _ in packed]
    x_TI = torch.randn(3, 64)
    expected = [multiply(x_TI, each) for each in packed]
    moved = [move_packed(each) for each in packed]
    for each_TO, matrix in zip(expected, moved, strict=True):
        assert torch.equal(multiply(x_TI, matrix), each_TO)
    assert all(torch.equal(each, torch.arange(1000)) for each in between)


def pack(num_outputs: int) -> torch.Tensor:
    found: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(torch.randn(num_outputs, 64), 4)
    return found


def multiply(x_TI: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x_TI, packed, None, "none", [], "")
    return found
