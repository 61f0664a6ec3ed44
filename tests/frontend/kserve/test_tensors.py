"""Tensors in JSON and in bytes: the same texts, whatever they hold; what is wrong is named."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.kserve.plans import read_infer
from frontend.kserve.tensors import InputTensor, OutputTensor, read_texts
from proto.errors import InvalidRequest


def tensor(shape: list[int], data: list[object] | None = None, datatype: str = "BYTES") -> InputTensor:
    return InputTensor("text_input", shape, datatype, data=data)


@settings(max_examples=50)
@given(st.lists(st.text(), max_size=8))
def test_bytes_and_json_hold_the_same_texts(texts: list[str]) -> None:
    _, binary = OutputTensor("text_output", "BYTES", [len(texts)], texts).binary()
    assert read_texts(tensor([len(texts)]), binary) == texts
    assert read_texts(tensor([len(texts), 1], [[text] for text in texts]), None) == texts


@pytest.mark.parametrize(
    ("shape", "data", "binary", "reason"),
    [
        ([2], ["one"], None, "does not hold 1"),
        ([1], [1], None, "not a string"),
        ([1], None, b"\x05\x00\x00\x00abc", "within an element"),
        ([1], None, b"\x05\x00", "within an element"),
        ([1], None, struct.pack("<I", 2) + b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_tensor_that_is_not_what_it_says_is_refused(
    shape: list[int], data: list[object] | None, binary: bytes | None, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        read_texts(tensor(shape, data), binary)


def test_numbers_are_no_text() -> None:
    with pytest.raises(InvalidRequest, match="datatype is BYTES, not INT32"):
        read_texts(tensor([1], [1], "INT32"), None)


def test_data_nested_deeper_than_a_tensor_is_refused() -> None:
    data = b"[" * 600 + b'"a"' + b"]" * 600
    said = b'{"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": %s}]}' % data
    with pytest.raises(InvalidRequest, match="not a string"):
        read_infer("tiny", said, None)


@settings(max_examples=100)
@given(st.binary(max_size=64), st.none() | st.integers(0, 80))
def test_no_bytes_are_taken_for_a_request_that_is_none(body: bytes, json_bytes: int | None) -> None:
    with pytest.raises(InvalidRequest):
        read_infer("tiny", body, json_bytes)
