"""One streamed completion: its events read into a reading, its errors told by type.

An error that the server tells is its status and its code ("503 no_worker", in a stream "stream no_worker");
one of the client is the code alone ("deadline_exceeded").
"""

import asyncio
import time

import msgspec

from proto.errors import DeadlineExceeded, Disconnected, InternalFault, KvmeshError
from services.replay.http_call import Server, call
from services.replay.reading import Reading

FACTS_HEADER = "x-kvmesh-facts: 1\r\n"  # kvmesh tells the worker then; other servers skip a header they lack
_MAX_HELD_BYTES = 2**20
_MAX_NAME = 64
_DONE = b"[DONE]"


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _ChoiceFacts(msgspec.Struct):
    worker: str = ""
    prefill: str = ""


class _Facts(msgspec.Struct):
    choices: list[_ChoiceFacts] = []


class _Fault(msgspec.Struct):
    type: str | None = None
    code: str | int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    kvmesh: _Facts | None = None
    error: _Fault | None = None


_EVENTS = msgspec.json.Decoder(_Event)


class CompletionReader:
    """Reads the body of one answer into `reading`. See `ask`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._held = b""
        self._status = 0

    def on_body(self, status: int, body: bytes) -> None:
        """
        Raises:
            InternalFault: no events of a completion.
        """
        self._status = status
        self._held += body
        if status == 200:
            *lines, self._held = self._held.split(b"\n")
            self._take_lines(lines, time.monotonic())
        if len(self._held) > _MAX_HELD_BYTES:
            raise InternalFault(reason="an event without an end")

    def end(self) -> None:
        """The body is whole.

        Raises:
            Disconnected: the answer in it is not.
        """
        reading = self._reading
        if self._status != 200:
            reading.error = f"{self._status} {_code(self._held)}".strip()
        elif not reading.finish and not reading.error:
            raise Disconnected(peer="the answer")

    def _take_lines(self, lines: list[bytes], now_s: float) -> None:
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now_s)

    def _take(self, data: bytes, now_s: float) -> None:
        if data == _DONE:
            return
        try:
            event = _EVENTS.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InternalFault(reason=f"not an event of a completion: {error}") from error
        if event.error is not None:
            self._reading.error = f"stream {_name(event.error)}".strip()
        for choice in event.choices:
            self._take_choice(choice, now_s)
        if event.usage is not None:
            self._take_usage(event.usage)
        if event.kvmesh is not None and event.kvmesh.choices:
            facts = event.kvmesh.choices[0]
            self._reading.worker, self._reading.prefill = facts.worker, facts.prefill

    def _take_choice(self, choice: _Choice, now_s: float) -> None:
        reading = self._reading
        if choice.text:
            reading.take_text(now_s)
        if choice.finish_reason:
            reading.finish = choice.finish_reason
            if not reading.first_s:  # an answer without text has its end instead
                reading.first_s = reading.last_s = now_s

    def _take_usage(self, usage: _Usage) -> None:
        reading, details = self._reading, usage.prompt_tokens_details
        reading.num_prompt, reading.num_out = usage.prompt_tokens, usage.completion_tokens
        reading.num_cached = (details.cached_tokens or 0) if details else 0


async def ask(server: Server, request: bytes, reading: Reading, limit_s: float) -> None:
    """Sends one request and fills `reading`; every failure is told there.

    Cancel: the connection is closed.
    """
    reader = CompletionReader(reading)
    reading.sent_s = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            await call(server, request, reader.on_body)
            reader.end()
    except TimeoutError:
        reading.error = DeadlineExceeded.code
    except KvmeshError as error:
        reading.error = reading.error or error.code
    finally:
        reading.ended_s = time.monotonic()


def _code(body: bytes) -> str:
    """The code of an error's envelope; empty where there is none."""
    try:
        event = _EVENTS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return _name(event.error) if event.error is not None else ""


def _name(fault: _Fault) -> str:
    return str(fault.code or fault.type or "")[:_MAX_NAME]
