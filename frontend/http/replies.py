"""Whole replies: their headers, and those that say what a client does after an error."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from frontend.request_id import REQUEST_ID_HEADER, choose_request_id
from proto.errors import KvmeshError
from services.faults import retry_after_s

Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [(b"content-type", b"application/json")]
_UNREAD = (408, 413)
"""Errors before the end of a body, the rest of which is still on its way."""


def error_headers(error: KvmeshError, *, closes: bool) -> Headers:
    """`closes`: the connection shall not be used again, so that the next request goes elsewhere."""
    headers = list(JSON_HEADERS)
    wait_s = retry_after_s(error)
    if wait_s is not None:
        headers.append((b"retry-after", str(wait_s).encode()))
    if closes or error.status in _UNREAD:
        headers.append((b"connection", b"close"))
    return headers


def request_id(request: Request) -> str:
    return choose_request_id(request.headers.get(REQUEST_ID_HEADER, ""))


def json_reply(
    request: Request, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A reply in JSON with the request's id. `headers` are others."""
    plain = {name.decode(): value.decode() for name, value in JSON_HEADERS}
    return Response(body, status, {**plain, **(headers or {}), REQUEST_ID_HEADER: request_id(request)})


def error_reply(request: Request, error: KvmeshError, body: bytes, *, closes: bool) -> Response:
    """`body`: the error in the words of its API; `closes`: as `error_headers`."""
    headers = {name.decode(): value.decode() for name, value in error_headers(error, closes=closes)}
    return json_reply(request, body, error.status, headers)


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
