"""The one codec: msgpack by msgspec, typed structs only, sizes checked before sending.

Foreign bytes never raise anything but `InvalidRequest`.
"""

from typing import Any, Generic, TypeVar

import msgspec

from proto.errors import InvalidRequest, PayloadTooLarge

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class Decoder(Generic[T]):
    """Reads one kind of message: a struct, or a union of tagged structs, which has its decoder beside it.

    A union is named twice, `Decoder[Reply](Reply)`: no type checker infers a type from a union's value.
    """

    def __init__(self, kind: object) -> None:
        self._name: str = getattr(kind, "__name__", "message")
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)

    def decode(self, payload: bytes) -> T:
        """The message in `payload`.

        Raises:
            InvalidRequest: not msgpack, an unknown tag, a missing or mistyped field.
        """
        try:
            message: T = self._decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(field=self._name, reason=str(error)) from error
        return message


_decoders: dict[object, Decoder[Any]] = {}


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
    """The struct of `kind` in `payload`; for a union use its `Decoder`.

    Raises:
        InvalidRequest: not msgpack, a missing or mistyped field.
    """
    decoder: Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = Decoder[T](kind)
    return decoder.decode(payload)
