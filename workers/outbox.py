"""A worker's side of every stream: frames out, one message per step and client, all kept for resends.

Tokens are kept until the frontend has acknowledged the end, so whatever the bus loses can be sent again.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from proto import subjects
from proto.codec import encode
from proto.errors import InvalidRequest, KvmeshError, PayloadTooLarge
from proto.streams import (
    End,
    Frame,
    LiveOffset,
    LiveOffsets,
    PleaseMove,
    Prefilled,
    StepFrames,
    StreamMessage,
)
from proto.tokens import TOKEN_BYTES
from services.bus import Bus

OFFSETS_S = 1.0
MAX_RESENT_BYTES = 256 * 1024
"""Of tokens and their records in one answer."""

log = logging.getLogger(__name__)

Item = TypeVar("Item", Frame, LiveOffset, tuple[str, int])


@dataclass(slots=True)
class Outgoing:
    """One attempt's stream. `base` is the offset at which it began; `tokens` are packed, and `logprobs` their
    records, if they were asked for."""

    request: str
    attempt: int
    client: str
    base: int
    tokens: bytearray = field(default_factory=bytearray)
    end: End | None = None
    prefilled: Prefilled | None = None
    ended_s: float = 0.0
    logprobs: bytearray = field(default_factory=bytearray)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    @property
    def offset(self) -> int:
        return self.base + self.num_tokens

    @property
    def record_bytes(self) -> int:
        """The length of each token's record; 0 when none were asked for."""
        return len(self.logprobs) // self.num_tokens if self.tokens else 0

    def logprobs_from(self, offset: int) -> bytes:
        """The records from this offset on."""
        return bytes(self.logprobs[(offset - self.base) * self.record_bytes :])


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
        self._streams: dict[str, dict[int, Outgoing]] = {}
        self._pending: dict[str, list[Frame]] = defaultdict(list)
        self._filled = asyncio.Event()

    def open(self, request: str, attempt: int, client: str, base: int) -> Outgoing:
        """Begin a stream; its first frame, without tokens, says that the worker has accepted."""
        stream = Outgoing(request, attempt, client, base)
        self._streams.setdefault(request, {})[attempt] = stream
        self._post(stream, Frame(request, attempt, base))
        return stream

    def add(
        self,
        stream: Outgoing,
        tokens: bytes,
        end: End | None = None,
        prefilled: Prefilled | None = None,
        logprobs: bytes = b"",
    ) -> None:
        """Append packed tokens with their records, the stream's one end, and with its first token how it was
        prefilled."""
        offset = stream.offset
        frame = Frame(stream.request, stream.attempt, offset, tokens, end, prefilled, logprobs=logprobs)
        stream.tokens += tokens
        stream.logprobs += logprobs
        if prefilled is not None:
            stream.prefilled = prefilled
        if end is not None:
            stream.end = end
            stream.ended_s = time.monotonic()
        self._post(stream, frame)

    def take_over(
        self, stream: Outgoing, tokens: bytes, prefilled: Prefilled | None, logprobs: bytes
    ) -> None:
        """Append what its source generated last, if anything: from now on the stream is this worker's."""
        offset = stream.offset
        frame = Frame(stream.request, stream.attempt, offset, tokens, None, prefilled, True, logprobs)
        stream.tokens += tokens
        stream.logprobs += logprobs
        stream.prefilled = prefilled
        self._post(stream, frame)

    def has(self, request: str, attempt: int) -> bool:
        return attempt in self._streams.get(request, {})

    def resend(self, request: str, attempt: int, offset: int) -> Frame:
        """Everything from `offset` on, or as much of it as one message holds: then the live offsets say that
        there is more.

        Raises:
            InvalidRequest: no such stream here, or it never reached back that far.
        """
        stream = self._streams.get(request, {}).get(attempt)
        if stream is None or not stream.base <= offset <= stream.offset:
            raise InvalidRequest(field="offset", reason="no such stream from there")
        first = offset - stream.base
        end = stream.num_tokens
        token_bytes = TOKEN_BYTES + stream.record_bytes
        last = min(end, first + MAX_RESENT_BYTES // token_bytes)
        return Frame(
            request,
            attempt,
            offset,
            bytes(stream.tokens[first * TOKEN_BYTES : last * TOKEN_BYTES]),
            stream.end if last == end else None,
            stream.prefilled if first == 0 else None,
            logprobs=bytes(stream.logprobs[first * stream.record_bytes : last * stream.record_bytes]),
        )

    async def please_move(self, streams: Iterable[Outgoing]) -> None:
        """Ask the readers of these streams to have them go on elsewhere."""
        by_client: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for stream in streams:
            by_client[stream.client].append((stream.request, stream.attempt))
        for client, attempts in by_client.items():
            await self._send(client, self._wishes, attempts)

    def drop_ended(self, request: str, attempt: int) -> None:
        """Forget an acknowledged stream. One that has not ended is acknowledged by mistake, and stays."""
        stream = self._streams.get(request, {}).get(attempt)
        if stream is not None and stream.end is not None:
            self._drop(stream)

    def drop_up_to(self, request: str, attempt: int) -> None:
        """Forget the streams of a request up to an attempt: nobody awaits them any more."""
        for stream in list(self._streams.get(request, {}).values()):
            if stream.attempt <= attempt:
                self._drop(stream)

    def drop_client(self, client: str) -> None:
        for stream in self._all():
            if stream.client == client:
                self._drop(stream)

    def clients(self) -> set[str]:
        return {stream.client for stream in self._all()}

    def __len__(self) -> int:
        return sum(len(attempts) for attempts in self._streams.values())

    async def run(self) -> None:
        """Send what is posted, and each second how far every stream is, while there is any. For ever."""
        next_s = time.monotonic() + OFFSETS_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_s - time.monotonic()) if self._streams else None):
                    await self._filled.wait()
            if time.monotonic() < next_s:
                await self.flush()
            else:
                next_s = time.monotonic() + OFFSETS_S
                await self._flush_with_offsets()

    async def flush(self) -> None:
        """Send what is posted. What the bus does not take is healed by a resend."""
        self._filled.clear()
        pending, self._pending = self._pending, defaultdict(list)
        for client, frames in pending.items():
            await self._send(client, self._frames, frames)

    def _all(self) -> list[Outgoing]:
        return [stream for attempts in self._streams.values() for stream in attempts.values()]

    def _drop(self, stream: Outgoing) -> None:
        attempts = self._streams[stream.request]
        del attempts[stream.attempt]
        if not attempts:
            del self._streams[stream.request]

    def _post(self, stream: Outgoing, frame: Frame) -> None:
        self._pending[stream.client].append(frame)
        self._filled.set()

    async def _flush_with_offsets(self) -> None:
        """The offsets are those that the frames before them lead to, whatever is posted meanwhile."""
        self._forget_old()
        offsets = self._offsets_by_client()
        await self.flush()
        for client, of_client in offsets.items():
            await self._send(client, self._offsets, of_client)

    def _offsets_by_client(self) -> dict[str, list[LiveOffset]]:
        by_client: dict[str, list[LiveOffset]] = defaultdict(list)
        for stream in self._all():
            offset = LiveOffset(stream.request, stream.attempt, stream.offset, stream.end is not None)
            by_client[stream.client].append(offset)
        return by_client

    def _forget_old(self) -> None:
        before_s = time.monotonic() - self._keep_s
        for stream in self._all():
            if stream.end is not None and stream.ended_s < before_s:
                log.warning("an end was never acknowledged", extra={"request": stream.request})
                self._drop(stream)

    def _frames(self, frames: Sequence[Frame]) -> StreamMessage:
        return StepFrames(self._worker, self._incarnation, list(frames))

    def _offsets(self, offsets: Sequence[LiveOffset]) -> StreamMessage:
        return LiveOffsets(self._worker, self._incarnation, list(offsets))

    def _wishes(self, attempts: Sequence[tuple[str, int]]) -> StreamMessage:
        return PleaseMove(self._worker, self._incarnation, list(attempts))

    async def _send(
        self, client: str, message: Callable[[Sequence[Item]], StreamMessage], items: Sequence[Item]
    ) -> None:
        """One message, or as many as the bus makes of one that is too large for it."""
        try:
            await self._bus.publish(subjects.stream(self._ns, client), encode(message(items)))
        except PayloadTooLarge as error:
            if len(items) == 1:
                log.error("a frame is too large for the bus", extra={"reason": str(error)})
                return
            half = len(items) // 2
            await self._send(client, message, items[:half])
            await self._send(client, message, items[half:])
        except KvmeshError as error:
            log.debug("frames were not sent", extra={"client": client, "reason": str(error)})
