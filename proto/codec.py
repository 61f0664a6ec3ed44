"""The one codec: msgpack by msgspec, typed structs only, sizes checked before sending.

Foreign bytes never raise anything but `InvalidRequest`.
"""

from typing import Any, TypeVar

import msgspec

from proto.errors import InvalidRequest, PayloadTooLarge

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, "msgspec.msgpack.Decoder[Any]"] = {}


def encode(message: msgspec.Struct, limit_bytes: int | None = None) -> bytes:
    """The bytes of `message`.

    Raises:
        PayloadTooLarge: more than `limit_bytes`.
    """
    payload = _encoder.encode(message)
    if limit_bytes is not None and len(payload) > limit_bytes:
        raise PayloadTooLarge(num_bytes=len(payload), limit_bytes=limit_bytes)
    return payload


def decode(payload: bytes, kind: type[T]) -> T:
    """The message in `payload`, which must be of `kind` (a struct, or a union of tagged structs).

    Raises:
        InvalidRequest: not msgpack, an unknown tag, a missing or mistyped field.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(payload)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, RecursionError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise InvalidRequest(field=name, reason=str(error)) from error
