"""The body of a request, within bounds of size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from proto.errors import DeadlineExceeded, PayloadTooLarge

_SPILL_BYTES = 64 * 2**20


async def read_body(request: Request, limit_bytes: int, limit_s: float) -> bytes:
    """
    Raises:
        PayloadTooLarge: more than `limit_bytes`. Some of the rest is read and dropped: a connection that
            is closed with bytes unread is reset, and the answer lost with it.
        DeadlineExceeded: the client is too slow.
        ClientDisconnect: it left.
    """
    body = bytearray()
    num_bytes = 0
    try:
        async with asyncio.timeout(limit_s):
            async for chunk in request.stream():
                num_bytes += len(chunk)
                if num_bytes <= limit_bytes:
                    body += chunk
                elif num_bytes > limit_bytes + _SPILL_BYTES:
                    break
    except TimeoutError as error:
        raise DeadlineExceeded(what="the body of the request", limit_s=limit_s) from error
    if num_bytes > limit_bytes:
        claimed = request.headers.get("content-length", "")
        claimed_bytes = int(claimed) if claimed.isdecimal() else 0
        raise PayloadTooLarge(num_bytes=max(num_bytes, claimed_bytes), limit_bytes=limit_bytes)
    return bytes(body)


__all__ = ["ClientDisconnect", "read_body"]
