"""A matrix in 8 bits: a quarter of the bytes to read, and the processor's own 8-bit products.

Weights are symmetric, with a scale for each output. Rows keep nearly all their bits: each is scaled by its
own largest number to 16 bits, which are multiplied as two digits of 8. So what is lost is lost in the weights
alone, and who else is in a step changes no token. Sums are of 32 bits, exact. With one digit the perplexity
of the default model on a text rises by 4.6 %, with two by 0.7 %; a small batch waits for the weights anyway.
"""

import math
from functools import partial
from typing import NamedTuple

import torch

from proto.errors import InvalidSetting
from workers.model.huge_pages import move_packed
from workers.model.row_product import RowProduct
from workers.model.weight_memory import WeightMemory
from workers.model.weights import Quantize

_MOST = 127
_BASE = 256
_MOST_WIDE = _MOST * _BASE + _MOST  # both digits at their most
_ZERO = 128  # what stands for 0: signed rows are multiplied a hundred times as slowly where there is no AMX
_ZERO_WIDE = _ZERO * _BASE + _ZERO
_ZERO_WHOLE = torch.tensor(float(2**23 + _ZERO_WIDE), device="cpu")
"""From 2**23 to twice that, float32 are the whole numbers: the low bytes are the digits of what is added."""
_OUT = torch.float32
_TINY = 1e-12  # of an output without weights, instead of a division by nothing
_LEAST = torch.finfo(torch.float32).tiny  # and of a row of zeros
_FEW_ROWS = 32  # up to here a product waits for its weights more than for its answer
_CACHED_ROWS = 64
# Named in full: torch looks through all overloads of a short name at each call.
_multiply_packed = torch.ops.onednn.qlinear_pointwise.default
_add_packed = torch.ops.onednn.qlinear_pointwise.binary


def choose_quantize(weights: str, device: torch.device) -> Quantize | None:
    """None for weights as they are.

    Raises:
        InvalidSetting: the device has no instructions for them.
    """
    if weights == "full":
        return None
    if device.type != "cpu":
        raise InvalidSetting(setting="worker.weights", reason=f"{weights} needs a CPU, not {device}")
    if not has_dot_products():
        reason = f"{weights} needs a CPU that multiplies 8-bit numbers into 32-bit sums (VNNI or AMX)"
        raise InvalidSetting(setting="worker.weights", reason=reason)
    return partial(Int8Projection, WeightMemory())


def has_dot_products() -> bool:
    """Without them oneDNN adds in 16 bits, which saturate."""
    able = torch.cpu.get_capabilities()
    return any(able.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


class Int8Projection:
    """Made of a matrix and its bias in float32. Keeps the matrix twice, in the layouts of two kernels.

    One row alone is faster in the second, and consists of the same whole numbers there.
    """

    def __init__(self, memory: WeightMemory, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        rounded_OI, scale_O = _round(weight_OI)
        self._multiply_row = RowProduct(rounded_OI, memory)
        self._matrix = _pack(rounded_OI, scale_O)
        self._bias_O = bias_O

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        sums_TO, scale = self._multiply(x_TI)
        y_TO = sums_TO.mul_(scale)
        if self._bias_O is not None:
            y_TO = y_TO.add_(self._bias_O)
        return y_TO.to(x_TI.dtype)

    def write_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        if self._bias_O is not None:
            y_TO.copy_(self(x_TI))
        else:
            torch.mul(*self._multiply(x_TI), out=y_TO)

    def add_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        if self._bias_O is not None or y_TO.dtype != _OUT:
            y_TO.add_(self(x_TI))
        else:
            y_TO.addcmul_(*self._multiply(x_TI))

    def _multiply(self, x_TI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The answer, without bias, as two factors: that of one row by what each output is scaled with, that
        of more by the largest number of each row."""
        if len(x_TI) == 1:
            whole_1I, most_11 = _write_whole(x_TI.float())
            return self._multiply_row(whole_1I.sub_(_ZERO_WHOLE), most_11), self._matrix.scale_O
        digits_2TI, most_T1 = _write_digits(x_TI.float())
        multiply = _multiply_at_once if len(x_TI) <= _FEW_ROWS else _multiply_in_turn
        return multiply(digits_2TI, self._matrix), most_T1


class _Matrix(NamedTuple):
    """`scale_O` is for rows whose largest number has become `_MOST_WIDE`."""

    packed: torch.Tensor
    scale_O: torch.Tensor
    zero_O: torch.Tensor


def _round(weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In 8 bits, and the scale of each output."""
    scale_O = weight_OI.abs().amax(dim=1).clamp_min_(_TINY).div_(_MOST)
    return (weight_OI / scale_O[:, None]).round_().to(torch.int8), scale_O


def _pack(rounded_OI: torch.Tensor, scale_O: torch.Tensor) -> _Matrix:
    zero_O = torch.zeros_like(scale_O, dtype=torch.int32)
    packed = move_packed(torch.ops.onednn.qlinear_prepack(rounded_OI, None))
    return _Matrix(packed, scale_O / _MOST_WIDE, zero_O)


def _write_digits(x_TI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower digits of all rows, then the higher ones, and each row's largest number.

    Some rows at a time, so that they stay in the cache meanwhile.
    """
    if len(x_TI) <= _CACHED_ROWS:
        return _write_some(x_TI)
    digits, most = zip(*(_write_some(some_TI) for some_TI in torch.split(x_TI, _CACHED_ROWS)), strict=True)
    return torch.cat(digits, dim=1), torch.cat(most)


def _write_some(x_TI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole_TI, most_T1 = _write_whole(x_TI)
    num_rows, num_columns = whole_TI.shape
    low_and_high_2TI = whole_TI.view(torch.uint8).as_strided(
        (2, num_rows, num_columns), (1, _OUT.itemsize * num_columns, _OUT.itemsize)
    )
    return low_and_high_2TI.contiguous(), most_T1


def _write_whole(x_TI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row as whole numbers, from `_ZERO_WHOLE` up and down, and its largest number."""
    most_T1 = _find_most(x_TI).clamp_min_(_LEAST)
    return torch.addcdiv(_ZERO_WHOLE, x_TI, most_T1, value=_MOST_WIDE), most_T1


def _find_most(x_TI: torch.Tensor) -> torch.Tensor:
    """The largest number of each row: of one by one operator; of more, two take a fraction of its time."""
    if len(x_TI) == 1:
        found: torch.Tensor = torch.linalg.vector_norm(x_TI, math.inf, dim=-1, keepdim=True)
        return found
    return x_TI.abs().amax(dim=-1, keepdim=True)


def _multiply_at_once(digits_2TI: torch.Tensor, matrix: _Matrix) -> torch.Tensor:
    """The digits as twice the rows: the weights are read once."""
    low_TO, high_TO = _product(digits_2TI.flatten(0, 1), matrix).chunk(2)
    return torch.add(low_TO, high_TO, alpha=_BASE)


def _multiply_in_turn(digits_2TI: torch.Tensor, matrix: _Matrix) -> torch.Tensor:
    """The product of the higher digits is added where that of the lower lies: the answer is written once."""
    low_TI, high_TI = digits_2TI
    sums_TO, scale = _product(low_TI, matrix), float(_BASE)
    found: torch.Tensor = _add_packed(
        high_TI, scale, _ZERO, *matrix, sums_TO, None, 1.0, 0, _OUT, 1.0, 0, "sum", 1.0, "none", [], ""
    )
    return found


def _product(digits_TI: torch.Tensor, matrix: _Matrix) -> torch.Tensor:
    """The operands are those that torch's own compiler emits."""
    found: torch.Tensor = _multiply_packed(digits_TI, 1.0, _ZERO, *matrix, None, 1.0, 0, _OUT, "none", [], "")
    return found
