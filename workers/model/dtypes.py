"""The numbers in which a model is computed and its KV kept, by name."""

from collections.abc import Mapping

import torch

from proto.errors import InvalidSetting

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def choose_dtype(wanted: str, stored: str, device: torch.device) -> torch.dtype:
    """`auto` is the one in which the weights are stored where the device computes in it, else float32.

    Raises:
        InvalidSetting: no such dtype.
    """
    if wanted == "auto":
        found = DTYPES.get(stored, torch.float32)
        return found if found in _native_dtypes(device) else torch.float32
    if wanted not in DTYPES:
        raise InvalidSetting(setting="dtype", reason=f"{wanted!r} is none of auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _native_dtypes(device: torch.device) -> set[torch.dtype]:
    """On a CPU, half precision is emulated where the instructions are missing, at a tenth of the speed."""
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        has_bfloat16 = able.get("avx512_bf16") or able.get("amx_bf16") or able.get("bf16")
        return {torch.float32, torch.bfloat16} if has_bfloat16 else {torch.float32}
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return {torch.float32, torch.float16}
    return set(DTYPES.values())
