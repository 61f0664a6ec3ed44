"""The norm is torch's own, in whatever numbers and however small the rows."""

import pytest
import torch
from torch.nn.functional import rms_norm

from workers.model.norm import RmsNorm

SIZE, EPS = 48, 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_divided_by_the_root_of_their_mean_square(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn((SIZE,), generator=draw).to(dtype)
    rows = torch.randn((5, SIZE), generator=draw).to(dtype)
    rows[1] = 0
    rows[2] *= 1e-3  # what keeps rows of zeros from a division by nothing is as large as their squares
    rows[3] *= 1e4
    expected = rms_norm(rows.float(), (SIZE,), weight.float(), EPS).to(dtype)
    found = RmsNorm(weight, EPS)(rows)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected)


def test_heads_have_weights_of_their_own() -> None:
    draw = torch.Generator().manual_seed(4)
    weight_XD = torch.randn((3, SIZE), generator=draw)
    heads_TXD = torch.randn((2, 3, SIZE), generator=draw)
    expected = rms_norm(heads_TXD, (SIZE,), None, EPS) * weight_XD
    torch.testing.assert_close(RmsNorm(weight_XD, EPS)(heads_TXD), expected)
