"""A matrix in 8 bits answers as the whole one does but for rounding, each row for itself."""

import pytest
import torch
from torch.nn.functional import linear

from workers.model.int8_projection import Int8Projection, has_dot_products
from workers.model.weight_memory import WeightMemory

pytestmark = pytest.mark.skipif(not has_dot_products(), reason="no 8-bit dot products in this processor")

NUM_IN, NUM_OUT = 192, 320


@pytest.fixture(scope="module")
def matrix() -> torch.Tensor:
    found: torch.Tensor = numbers(NUM_OUT, seed=1) / NUM_IN**0.5
    return found


def numbers(num_rows: int, seed: int = 2) -> torch.Tensor:
    return torch.randn((num_rows, NUM_IN), generator=torch.Generator().manual_seed(seed))


def project(weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> Int8Projection:
    return Int8Projection(WeightMemory(), weight_OI, bias_O)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 64])
def test_answers_are_those_of_the_whole_matrix_but_for_rounding(
    matrix: torch.Tensor, count: int, dtype: torch.dtype
) -> None:
    bias_O = torch.linspace(-2, 2, NUM_OUT)
    x_TI = numbers(count).to(dtype).repeat(1, 2)[:, :NUM_IN]  # half of wider rows, as a gate is
    small = project(matrix, bias_O)
    found_TO = small(x_TI)
    assert found_TO.dtype == dtype
    small.write_to(written_TO := torch.empty_like(found_TO), x_TI)
    assert written_TO.equal(found_TO)
    error_TO = found_TO.float() - linear(x_TI.float(), matrix, bias_O)
    assert error_TO.square().mean().sqrt() < 0.015  # of answers of about 1 around the bias


@pytest.mark.parametrize("count", [1, 3, 64])
def test_the_largest_numbers_do_not_overflow(count: int) -> None:
    """Also where sums of 16 bits would."""
    whole_OI, x_TI = torch.full((NUM_OUT, NUM_IN), 127.0), torch.full((count, NUM_IN), -127.0)
    expected_TO = torch.full((count, NUM_OUT), -127.0 * 127 * NUM_IN)
    torch.testing.assert_close(project(whole_OI, None)(x_TI), expected_TO, rtol=1e-6, atol=0)


@pytest.mark.parametrize("count", [1, 4, 64])
def test_rows_keep_nearly_all_their_bits(count: int) -> None:
    """As weights that are whole numbers show."""
    whole_OI = torch.randint(-127, 128, (NUM_OUT, NUM_IN), generator=torch.Generator().manual_seed(3)).float()
    whole_OI[:, 0] = 127
    x_TI = numbers(count)
    expected_TO = linear(x_TI, whole_OI)
    error_TO = project(whole_OI, None)(x_TI) - expected_TO
    assert error_TO.norm() < 1e-4 * expected_TO.norm()


@pytest.mark.parametrize("count", [9, 64])
def test_a_row_is_answered_alike_alone_and_among_others_however_large(
    matrix: torch.Tensor, count: int
) -> None:
    answer, x_TI = project(matrix, None), numbers(count)
    alone_1O = answer(x_TI[4:5])
    x_TI[7] *= 1e6
    x_TI[8] = torch.nan
    found_TO = answer(x_TI)
    torch.testing.assert_close(found_TO[4:5], alone_1O, atol=1e-5, rtol=0)
    assert found_TO[:8].isfinite().all()
    assert found_TO[8].isnan().all()


@pytest.mark.parametrize("num_threads", [2, 5])
def test_one_row_is_answered_alike_however_many_threads_sum_it(
    matrix: torch.Tensor, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_1I = numbers(1)
    expected_1O = project(matrix, None)(x_1I.repeat(2, 1))[:1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    torch.testing.assert_close(project(matrix, None)(x_1I), expected_1O, atol=1e-5, rtol=0)


def test_a_row_and_a_column_of_zeros_give_zeros(matrix: torch.Tensor) -> None:
    weight_OI = matrix.clone()
    weight_OI[5] = 0
    x_TI = numbers(2)
    x_TI[1] = 0
    answer = project(weight_OI, None)
    for found_TO in (answer(x_TI), torch.cat([answer(x_1I) for x_1I in x_TI[:, None]])):
        assert not found_TO[1].any()
        assert not found_TO[:, 5].any()


def test_no_rows_give_no_rows(matrix: torch.Tensor) -> None:
    """As of a step that wants no logits."""
    assert project(matrix, None)(numbers(0)).shape == (0, NUM_OUT)
