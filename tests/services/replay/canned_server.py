"""A stranger's HTTP server: says the same bytes to whoever asks, so that a client's reading is tested."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import msgspec

from services.replay.http_call import Server

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class CannedServer:
    """Writes `pieces` one by one, then closes the connection; with `hangs`, once the client has left."""

    def __init__(self, pieces: list[bytes], *, hangs: bool) -> None:
        self.requests: list[bytes] = []
        self._pieces = pieces
        self._hangs = hangs
        self.was_asked = asyncio.Event()
        self.was_left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            self.requests.append(head + await reader.readexactly(length))
            self.was_asked.set()
            for piece in self._pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if self._hangs:
                with suppress(ConnectionResetError):
                    await reader.read()
                self.was_left.set()

    @property
    def bodies(self) -> list[dict[str, object]]:
        return [msgspec.json.decode(request.split(b"\r\n\r\n", 1)[1]) for request in self.requests]


@asynccontextmanager
async def canned_server(*pieces: bytes, hangs: bool = False) -> AsyncIterator[tuple[Server, CannedServer]]:
    canned = CannedServer(list(pieces), hangs=hangs)
    server = await asyncio.start_server(canned.serve, "127.0.0.1", 0, limit=2**24)
    async with server:
        yield Server("127.0.0.1", server.sockets[0].getsockname()[1]), canned


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def event(**fields: object) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def text(piece: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": piece, "finish_reason": finish}])
