"""A matrix in 8 bits: a quarter of the bytes to read, and the processor's own 8-bit products.

Weights are symmetric, with a scale for each output; rows are brought to 8 bits as they come, each by its own
largest number, so that who else is in a step changes no token. Sums are of 32 bits, exact.
"""

import torch

from proto.errors import InvalidSetting
from workers.model.weights import Quantize

_MOST = 127
_TINY = 1e-12  # of a row of zeros, instead of a division by nothing


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
        reason = f"{weights} needs a CPU that multiplies 8-bit numbers into 32-bit sums (VNNI, AMX or SDOT)"
        raise InvalidSetting(setting="worker.weights", reason=reason)
    return Int8Projection


def has_dot_products() -> bool:
    """Without them oneDNN adds in 16 bits, which saturate."""
    able = torch.cpu.get_capabilities()
    return any(able.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8", "dot"))


class Int8Projection:
    """Made of a matrix and its bias in float32. Keeps the matrix in the layout of the kernel."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        self._scale_O = weight_OI.abs().amax(dim=1).clamp_min_(_TINY).div_(_MOST)
        rounded_OI = (weight_OI / self._scale_O[:, None]).round_().to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(rounded_OI, None)
        self._zero_O = torch.zeros(len(weight_OI), dtype=torch.int32)
        self._bias_O = bias_O

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        wide_TI = x_TI.float()
        scale_T1 = wide_TI.abs().amax(dim=-1, keepdim=True).clamp_min_(_TINY).div_(_MOST)
        rounded_TI = (wide_TI / scale_T1).round_().to(torch.int8)
        sums_TO: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded_TI,
            1.0,
            0,
            self._packed,
            self._scale_O,
            self._zero_O,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        y_TO = sums_TO.mul_(scale_T1)
        if self._bias_O is not None:
            y_TO = y_TO.add_(self._bias_O)
        return y_TO.to(x_TI.dtype)
