"""Whole matrices multiply, write where they are told, and add to what is there, as torch's linear does."""

import pytest
import torch
from torch.nn.functional import linear

from workers.model.head_projection import project_head
from workers.model.projection import FullProjection, Projection


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 5, 70])
def test_rows_are_multiplied_and_added(count: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(count)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).to(dtype)

    weight_OI, bias_O, x_TI, y_TO = numbers(7, 6), numbers(7), numbers(count, 12)[:, :6], numbers(count, 7)
    for bias in (bias_O, None):
        full, expected_TO = FullProjection(weight_OI.t(), bias), linear(x_TI, weight_OI, bias)
        check(full, x_TI, y_TO, expected_TO)
        full.write_to(y_TO, x_TI)
        torch.testing.assert_close(y_TO, expected_TO)
    check(project_head(weight_OI), x_TI, y_TO, linear(x_TI, weight_OI))


def check(project: Projection, x_TI: torch.Tensor, y_TO: torch.Tensor, expected_TO: torch.Tensor) -> None:
    torch.testing.assert_close(project(x_TI), expected_TO)
    sum_TO = y_TO.clone()
    project.add_to(sum_TO, x_TI)
    torch.testing.assert_close(
        sum_TO, y_TO + expected_TO, atol=0.02 if y_TO.itemsize == 2 else 1e-5, rtol=0.02
    )
