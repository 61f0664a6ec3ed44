"""Token ids on the wire: packed little-endian uint32."""

import sys
from array import array
from collections.abc import Sequence

from proto.errors import InvalidRequest

TOKEN_BYTES = 4


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Four bytes a token.

    Raises:
        InvalidRequest: a token is negative or does not fit into 32 bits, or `tokens` is packed already.
    """
    if isinstance(tokens, bytes | bytearray):  # `array` would take them for its own memory
        raise InvalidRequest(field="tokens", reason="bytes are no list of token ids")
    try:
        packed = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise InvalidRequest(field="tokens", reason="token ids are integers from 0 to 2^32 - 1") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """The inverse of `pack_tokens`.

    Raises:
        InvalidRequest: the length is no multiple of four.
    """
    if len(data) % TOKEN_BYTES:
        raise InvalidRequest(field="tokens", reason=f"{len(data)} bytes are no whole number of token ids")
    packed = array("I", data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def count_tokens(data: bytes) -> int:
    return len(data) // TOKEN_BYTES
