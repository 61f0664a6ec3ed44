"""The body of a request, within bounds of size and time."""

import asyncio

import msgspec
from starlette.requests import ClientDisconnect, Request

from proto.errors import BodyTooSlow, PayloadTooLarge

_SPILL_BYTES = 64 * 2**20


class BodyLimits(msgspec.Struct, frozen=True):
    """Units: bytes, and seconds that a client may take to send them."""

    num_bytes: int
    limit_s: float


async def receive_body(request: Request, limits: BodyLimits) -> bytes:
    """
    Raises:
        PayloadTooLarge: more than the limit. Some of the rest is read and dropped: a connection that
            is closed with bytes unread is reset, and the answer lost with it.
        BodyTooSlow: the client is.
        ClientDisconnect: it left.
    """
    body = bytearray()
    num_bytes = 0
    try:
        async with asyncio.timeout(limits.limit_s):
            async for chunk in request.stream():
                num_bytes += len(chunk)
                if num_bytes <= limits.num_bytes:
                    body += chunk
                elif num_bytes > limits.num_bytes + _SPILL_BYTES:
                    break
    except TimeoutError as error:
        raise BodyTooSlow(limit_s=limits.limit_s) from error
    if num_bytes > limits.num_bytes:
        claimed = request.headers.get("content-length", "")
        claimed_bytes = int(claimed) if claimed.isdecimal() else 0
        raise PayloadTooLarge(num_bytes=max(num_bytes, claimed_bytes), limit_bytes=limits.num_bytes)
    return bytes(body)


__all__ = ["BodyLimits", "ClientDisconnect", "receive_body"]
