"""Tensors as the protocol carries them: in JSON, or as bytes behind it.

```
 Inference-Header-Content-Length: n
 body: n bytes of JSON │ the data of each binary tensor, in the order of the JSON
 a BYTES tensor: of each element its length (4 bytes, little endian) and itself
```

Source: KServe's "Open Inference Protocol" (v2), and Triton's extension "binary tensor data".
"""

import math
import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from proto.errors import InvalidRequest

TEXT_INPUT = "text_input"
Value = str | int
Datatype = Literal["BYTES", "UINT32"]
Parameters = dict[str, Any]
MAX_DIMS = 8
_LENGTH = struct.Struct("<I")


class InputTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    shape: Annotated[list[Annotated[int, Meta(ge=0, lt=2**31)]], Meta(max_length=MAX_DIMS)]
    datatype: str
    parameters: Parameters = {}
    data: list[Any] | None = None


class OutputWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    parameters: Parameters = {}


class InferBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of a request to `infer`."""

    inputs: list[InputTensor]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[OutputWish] | None = None


class OutputTensor(msgspec.Struct, frozen=True):
    """`values` in row-major order, of strings or of numbers."""

    name: str
    datatype: Datatype
    shape: list[int]
    values: Sequence[Value]

    def json(self) -> Parameters:
        return {**self._head(), "data": self.values}

    def binary(self) -> tuple[Parameters, bytes]:
        """Its part of the JSON, and what follows the JSON."""
        data = b"".join(map(_encode, self.values))
        return {**self._head(), "parameters": {"binary_data_size": len(data)}}, data

    def _head(self) -> Parameters:
        return {"name": self.name, "datatype": self.datatype, "shape": self.shape}


def read_texts(tensor: InputTensor, binary: bytes | None) -> list[str]:
    """The elements of a BYTES tensor. `binary` is its data where that came behind the JSON.

    Raises:
        InvalidRequest: not BYTES, not as many elements as its shape says, or not UTF-8.
    """
    if tensor.datatype != "BYTES":
        raise InvalidRequest(field=tensor.name, reason=f"its datatype is BYTES, not {tensor.datatype}")
    values = _flat(tensor.data or []) if binary is None else _split(tensor.name, binary)
    if math.prod(tensor.shape) != len(values):
        reason = f"the shape {tensor.shape} does not hold {len(values)} elements"
        raise InvalidRequest(field=tensor.name, reason=reason)
    return [_text(tensor.name, value) for value in values]


def _flat(data: list[Any]) -> list[Any]:
    """Row by row, from whatever depth a tensor can have."""
    for _ in range(MAX_DIMS):
        data = [leaf for value in data for leaf in (value if isinstance(value, list) else [value])]
    return data


def _split(name: str, binary: bytes) -> list[bytes]:
    values = []
    place = 0
    while place < len(binary):
        end = place + _LENGTH.size
        if end <= len(binary):
            end += _LENGTH.unpack_from(binary, place)[0]
        if end > len(binary):
            raise InvalidRequest(field=name, reason="its bytes end within an element")
        values.append(binary[place + _LENGTH.size : end])
        place = end
    return values


def _text(name: str, value: object) -> str:
    try:
        if isinstance(value, bytes):
            return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(field=name, reason="an element is not UTF-8") from error
    if not isinstance(value, str):
        raise InvalidRequest(field=name, reason="an element is not a string")
    return value


def _encode(value: Value) -> bytes:
    if isinstance(value, int):
        return struct.pack("<I", value)
    raw = value.encode()
    return _LENGTH.pack(len(raw)) + raw
