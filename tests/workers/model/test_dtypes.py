"""A model is computed in the numbers that are asked for, or in its own where the device is up to them."""

import pytest
import torch

from workers.model.dtypes import DTYPES, choose_dtype, dtype_name

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_that_is_asked_for_is_taken(name: str) -> None:
    assert dtype_name(choose_dtype(name, "float32", CPU)) == name


@pytest.mark.parametrize(
    ("stored", "able", "expected"),
    [
        ("float32", {"avx512_bf16": True}, torch.float32),
        ("bfloat16", {"avx512_bf16": True}, torch.bfloat16),
        ("bfloat16", {"amx_bf16": True}, torch.bfloat16),
        ("bfloat16", {"avx2": True}, torch.float32),
        ("float16", {"avx512_fp16": True}, torch.float32),
        ("float8_e4m3fn", {}, torch.float32),
    ],
)
def test_auto_is_as_stored_where_the_processor_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, stored: str, able: dict[str, bool], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert choose_dtype("auto", stored, CPU) is expected


@pytest.mark.parametrize("name", DTYPES)
def test_auto_is_as_stored_on_a_device_that_has_them_all(name: str) -> None:
    assert dtype_name(choose_dtype("auto", name, torch.device("meta"))) == name
