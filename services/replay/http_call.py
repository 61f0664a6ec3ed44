"""One HTTP request on a connection of its own, and its answer as it comes: hundreds at a time cost little.

The parser is that of `httptools`; what a client library adds to it (pools, redirects, decoded bodies) is
most of what a stream costs.
"""

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

import httptools
import msgspec

from proto.errors import Disconnected, InternalFault, InvalidSetting, KvmeshError, NoResponder

OnBody = Callable[[int, bytes], None]
"""Takes the status and a piece of the body. A `KvmeshError` that it raises ends the call."""


class Server(msgspec.Struct, frozen=True):
    """Where an OpenAI API is; `path` is what stands before `/v1`."""

    host: str
    port: int
    is_tls: bool = False
    path: str = ""

    def request(self, method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
        head = (
            f"{method} {self.path}{path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        )
        return head.encode() + body


def parse_url(url: str) -> Server:
    """
    Raises:
        InvalidSetting: not `http://host:port` with or without a path.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidSetting(setting="--url", reason=f"{url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidSetting(setting="--url", reason=f"{url!r} is not http://host:port")
    is_tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Server(parts.hostname, port or (443 if is_tls else 80), is_tls, path)


async def call(server: Server, request: bytes, on_body: OnBody) -> None:
    """Returns when the answer is whole.

    Cancel: the connection is closed.

    Raises:
        NoResponder: nobody listens there.
        Disconnected: the answer was cut off.
        InternalFault: it is not HTTP.
        KvmeshError: what `on_body` raised.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    ended.add_done_callback(_note_seen)
    peer = f"{server.host}:{server.port}"
    try:
        transport, _ = await loop.create_connection(
            lambda: _Call(on_body, ended, peer),
            server.host,
            server.port,
            ssl=True if server.is_tls else None,
        )
    except OSError as error:
        raise NoResponder(subject=peer) from error
    try:
        transport.write(request)
        await ended
    finally:
        transport.abort()


def _note_seen(ended: "asyncio.Future[None]") -> None:
    """A call that is cancelled as it ends does not look at how it ended, which is no fault."""
    if not ended.cancelled():
        ended.exception()


class _Call(asyncio.Protocol):
    """Reads the answer: hands its body on, and ends `ended` exactly once."""

    def __init__(self, on_body: OnBody, ended: "asyncio.Future[None]", peer: str) -> None:
        self._on_body = on_body
        self._ended = ended
        self._peer = peer
        self._has_head = False
        self._is_framed = False
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        if self._ended.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(InternalFault(reason=f"the answer of {self._peer} is not HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        """The end of a body whose length nobody told is that of its connection."""
        is_end = error is None and self._has_head and not self._is_framed
        self._end(None if is_end else Disconnected(peer=self._peer))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        try:
            if not self._ended.done():
                self._on_body(self._parser.get_status_code(), body)
        except KvmeshError as error:
            self._end(error)

    def on_message_complete(self) -> None:
        self._end(None)

    def _end(self, error: KvmeshError | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
