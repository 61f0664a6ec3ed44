"""Whole replies: JSON with its headers, errors in OpenAI's envelope."""

from starlette.types import Send

from proto.errors import KvmeshError
from services.faults import error_json, retry_after_s

REQUEST_ID_HEADER = "x-request-id"
Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [(b"content-type", b"application/json")]


def error_headers(error: KvmeshError, *, closes: bool) -> Headers:
    """`closes`: the connection shall not be used again, so that the next request goes elsewhere."""
    headers = list(JSON_HEADERS)
    wait_s = retry_after_s(error)
    if wait_s is not None:
        headers.append((b"retry-after", str(wait_s).encode()))
    if closes:
        headers.append((b"connection", b"close"))
    return headers


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(send: Send, error: KvmeshError, headers: Headers, *, closes: bool = False) -> None:
    body = error_json(error)
    await send_whole(send, error.status, [*error_headers(error, closes=closes), *headers], body)
