"""A worker's side of every stream: frames out, one message per step and client, all kept for resends.

Tokens are kept until the frontend has acknowledged the end, so whatever the bus loses can be sent again.
"""

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field

from proto import subjects
from proto.codec import encode
from proto.errors import Disconnected, InvalidRequest
from proto.streams import End, Frame, LiveOffset, LiveOffsets, StepFrames
from proto.tokens import TOKEN_BYTES
from services.bus import Bus

OFFSETS_S = 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outgoing:
    """One attempt's stream. `base` is the offset at which it began; `tokens` are packed."""

    request: str
    attempt: int
    client: str
    base: int
    tokens: bytearray = field(default_factory=bytearray)
    end: End | None = None
    ended_s: float = 0.0

    @property
    def offset(self) -> int:
        return self.base + len(self.tokens) // TOKEN_BYTES


class Outbox:
    """All streams of a worker. Belongs to the event loop; `run` sends.

    Args: `keep_s`: seconds that an ended stream waits for its acknowledgement.
    """

    def __init__(self, bus: Bus, ns: str, worker: str, incarnation: str, keep_s: float) -> None:
        self._bus = bus
        self._ns = ns
        self._worker = worker
        self._incarnation = incarnation
        self._keep_s = keep_s
        self._streams: dict[tuple[str, int], Outgoing] = {}
        self._pending: dict[str, list[Frame]] = defaultdict(list)
        self._filled = asyncio.Event()

    def open(self, request: str, attempt: int, client: str, base: int) -> Outgoing:
        """Begin a stream; its first frame, without tokens, says that the worker has accepted."""
        stream = self._streams[request, attempt] = Outgoing(request, attempt, client, base)
        self._post(stream, Frame(request, attempt, base))
        return stream

    def add(self, stream: Outgoing, tokens: bytes, end: End | None = None) -> None:
        """Append packed tokens, and the stream's one end."""
        frame = Frame(stream.request, stream.attempt, stream.offset, tokens, end)
        stream.tokens += tokens
        if end is not None:
            stream.end = end
            stream.ended_s = time.monotonic()
        self._post(stream, frame)

    def resend(self, request: str, attempt: int, offset: int) -> Frame:
        """Everything from `offset` on.

        Raises:
            InvalidRequest: no such stream here, or it never reached back that far.
        """
        stream = self._streams.get((request, attempt))
        if stream is None or not stream.base <= offset <= stream.offset:
            raise InvalidRequest(field="offset", reason="no such stream from there")
        start = (offset - stream.base) * TOKEN_BYTES
        return Frame(request, attempt, offset, bytes(stream.tokens[start:]), stream.end)

    def drop(self, request: str, attempt: int) -> None:
        """Forget a stream: acknowledged, or nobody's any more."""
        self._streams.pop((request, attempt), None)

    def clients(self) -> set[str]:
        return {stream.client for stream in self._streams.values()}

    def __len__(self) -> int:
        return len(self._streams)

    async def run(self) -> None:
        """Send what is posted, and each second how far every stream is. For ever."""
        next_s = time.monotonic() + OFFSETS_S
        while True:
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + next_s - time.monotonic()):
                    await self._filled.wait()
            except TimeoutError:
                next_s = time.monotonic() + OFFSETS_S
                await self._send_offsets()
            await self.flush()

    async def flush(self) -> None:
        """Send what is posted. What the bus does not take is healed by a resend."""
        self._filled.clear()
        pending, self._pending = self._pending, defaultdict(list)
        for client, frames in pending.items():
            await self._publish(client, StepFrames(self._worker, self._incarnation, frames))

    def _post(self, stream: Outgoing, frame: Frame) -> None:
        self._pending[stream.client].append(frame)
        self._filled.set()

    async def _send_offsets(self) -> None:
        self._forget_old()
        by_client: dict[str, list[LiveOffset]] = defaultdict(list)
        for stream in self._streams.values():
            offset = LiveOffset(stream.request, stream.attempt, stream.offset, stream.end is not None)
            by_client[stream.client].append(offset)
        for client, offsets in by_client.items():
            await self._publish(client, LiveOffsets(self._worker, self._incarnation, offsets))

    def _forget_old(self) -> None:
        before_s = time.monotonic() - self._keep_s
        for stream in list(self._streams.values()):
            if stream.end is not None and stream.ended_s < before_s:
                log.warning("an end was never acknowledged", extra={"request": stream.request})
                self.drop(stream.request, stream.attempt)

    async def _publish(self, client: str, message: StepFrames | LiveOffsets) -> None:
        try:
            await self._bus.publish(subjects.stream(self._ns, client), encode(message))
        except Disconnected as error:
            log.info("frames were not sent", extra={"client": client, "reason": str(error)})
