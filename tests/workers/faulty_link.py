"""A link to NATS that loses and doubles messages: a proxy that knows where one ends and the next begins.

Source: the NATS client protocol (PUB, HPUB, MSG and HMSG end their line with the bytes that follow).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_WITH_PAYLOAD = (b"PUB", b"HPUB", b"MSG", b"HMSG")
_ENDED = (asyncio.IncompleteReadError, ConnectionError)

IsMeant = Callable[[str], bool]


class FaultyLink:
    """Passes everything until `begin`; then loses or doubles those messages whose subject is meant."""

    def __init__(self, upstream: str, seed: int, is_meant: IsMeant) -> None:
        self.url = ""
        self.num_lost = 0
        self.num_doubled = 0
        self._upstream = urlsplit(upstream)
        self._random = random.Random(seed)
        self._is_meant = is_meant
        self._share = 0.0
        self._connections: set[asyncio.Task[None]] = set()

    def connect(
        self, tasks: asyncio.TaskGroup, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Take one more."""
        self._connections.add(tasks.create_task(self._serve(reader, writer), name="a connection"))

    def cut(self) -> None:
        """End the connections that there are; new ones are taken."""
        for connection in self._connections:
            connection.cancel()

    def begin(self, share: float) -> None:
        """Lose this share of what is meant, and double as much; 0 ends it."""
        self._share = share

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side closes it."""
        up_reader, up_writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, up_writer), name="to the server")
                tasks.create_task(self._pass_on(up_reader, writer), name="from the server")
        finally:
            writer.close()
            up_writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = line.split()
                message = line
                num_times = 1
                if words and words[0] in _WITH_PAYLOAD:
                    message += await reader.readexactly(int(words[-1]) + 2)
                    num_times = self._num_times(words[1].decode())
                writer.write(message * num_times)
                await writer.drain()
        except _ENDED:
            return
        finally:
            writer.close()

    def _num_times(self, subject: str) -> int:
        drawn = self._random.random()
        if drawn >= 2 * self._share or not self._is_meant(subject):
            return 1
        if drawn < self._share:
            self.num_lost += 1
            return 0
        self.num_doubled += 1
        return 2


@asynccontextmanager
async def open_faulty_link(upstream: str, seed: int, is_meant: IsMeant) -> AsyncIterator[FaultyLink]:
    link = FaultyLink(upstream, seed, is_meant)
    async with asyncio.TaskGroup() as tasks:
        server = await asyncio.start_server(lambda *ends: link.connect(tasks, *ends), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        link.url = f"nats://{host}:{port}"
        yield link
        server.close()
        link.cut()
