"""A trace: which requests came when, and which blocks their prompts share, in the public Mooncake format.

JSON lines, a request each:
```
{"timestamp": 27482, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}
```
A hash id stands for a block of 512 tokens and for all before it; the last block may be cut. Fields that are
not known are skipped: some publishers add their own.
Source: FAST25-release/traces of Mooncake (github.com/kvcache-ai/Mooncake).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.errors import InvalidSetting

BLOCK_TOKENS = 512
MAX_LINE_BYTES = 2**24

Milliseconds = Annotated[int, Meta(ge=0, lt=2**53)] | Annotated[float, Meta(ge=0, lt=2**53)]
NumTokens = Annotated[int, Meta(ge=1, lt=2**31)]


class TraceRequest(msgspec.Struct, frozen=True):
    """Units: `timestamp` milliseconds from the start of the trace; lengths in tokens."""

    timestamp: Milliseconds
    input_length: NumTokens
    output_length: NumTokens
    hash_ids: tuple[int, ...]


def num_blocks(num_tokens: int) -> int:
    """Blocks that a prompt takes, its last one perhaps cut."""
    return -(-num_tokens // BLOCK_TOKENS)


def read_trace(path: Path, max_requests: int | None = None) -> list[TraceRequest]:
    """The requests of the first `max_requests` lines, by time.

    Raises:
        InvalidSetting: the file cannot be read, has no requests, or a line is not one; it names the line.
    """
    requests: list[TraceRequest] = []
    try:
        with path.open("rb") as file:
            number = 0
            while len(requests) != max_requests and (line := file.readline(MAX_LINE_BYTES)):
                number += 1
                if line.strip():
                    requests.append(_read_line(line, f"{path}:{number}"))
    except OSError as error:
        raise InvalidSetting(setting=str(path), reason=error.strerror or str(error)) from error
    if not requests:
        raise InvalidSetting(setting=str(path), reason="it has no requests")
    return sorted(requests, key=lambda request: request.timestamp)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """
    Raises:
        InvalidSetting: the file cannot be written.
    """
    encoder = msgspec.json.Encoder()
    try:
        with path.open("wb") as file:
            file.writelines(encoder.encode(request) + b"\n" for request in requests)
    except OSError as error:
        raise InvalidSetting(setting=str(path), reason=error.strerror or str(error)) from error


def possible_hit_rate(requests: Sequence[TraceRequest]) -> float:
    """The share of prompt tokens that one cache without bounds would have when each request comes."""
    seen: set[int] = set()
    hit_tokens = 0
    for request in requests:
        num_seen = next(
            (index for index, block in enumerate(request.hash_ids) if block not in seen),
            len(request.hash_ids),
        )
        hit_tokens += min(num_seen * BLOCK_TOKENS, request.input_length)
        seen.update(request.hash_ids)
    return hit_tokens / sum(request.input_length for request in requests)


_DECODER = msgspec.json.Decoder(TraceRequest)


def _read_line(line: bytes, place: str) -> TraceRequest:
    try:
        request = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSetting(setting=place, reason=str(error)) from error
    wanted = num_blocks(request.input_length)
    if len(request.hash_ids) != wanted:
        reason = (
            f"{request.input_length} tokens are {wanted} blocks of {BLOCK_TOKENS}, "
            f"not {len(request.hash_ids)} hash ids"
        )
        raise InvalidSetting(setting=place, reason=reason)
    return request
