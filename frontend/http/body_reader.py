"""The body of a request, within bounds of size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from proto.errors import DeadlineExceeded, PayloadTooLarge


async def read_body(request: Request, limit_bytes: int, limit_s: float) -> bytes:
    """
    Raises:
        PayloadTooLarge: more than `limit_bytes`; known before the rest is read.
        DeadlineExceeded: the client is too slow.
        ClientDisconnect: it left.
    """
    claimed = request.headers.get("content-length", "")
    if claimed.isdecimal() and int(claimed) > limit_bytes:
        raise PayloadTooLarge(num_bytes=int(claimed), limit_bytes=limit_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit_bytes:
                    raise PayloadTooLarge(num_bytes=len(body), limit_bytes=limit_bytes)
    except TimeoutError as error:
        raise DeadlineExceeded(what="the body of the request", limit_s=limit_s) from error
    return bytes(body)


__all__ = ["ClientDisconnect", "read_body"]
