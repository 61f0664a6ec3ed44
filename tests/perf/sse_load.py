"""A closed loop of streaming clients in one process: raw HTTP, so that the client costs little.

Only loopback addresses are accepted as a target; requests are counted and the whole run has a deadline.
"""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

WORDS = (
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
)
LIMIT_S = 120.0
_READ_BYTES = 1 << 16


@dataclass
class Reading:
    """One answer as its client saw it. Units: seconds on the monotonic clock; `writes` counts reads that
    brought events, `events` those with text, `at_s` when each came."""

    began_s: float
    first_s: float = 0.0
    ended_s: float = 0.0
    writes: int = 0
    events: int = 0
    at_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """What is asked: `num_words` distinct random words in, `num_tokens` out, one token an event."""

    url: str
    model: str
    num_words: int
    num_tokens: int
    seed: int = 1

    def body(self, number: int) -> bytes:
        prompt = " ".join(random.Random(f"{self.seed}/{number}").choices(WORDS, k=self.num_words))
        return json.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": self.num_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()


async def run_load(load: Load, num_streams: int, num_requests: int) -> list[Reading]:
    """Every answer, `num_streams` at a time.

    Raises:
        AssertionError: the target is not this machine, or an answer was not whole.
    """
    numbers = iter(range(num_requests))
    readings: list[Reading] = []
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        for number in range(num_streams):
            tasks.create_task(run_client(load, numbers, readings), name=f"client {number}")
    assert all(reading.events >= load.num_tokens for reading in readings), "an answer was not whole"
    return readings


async def run_client(load: Load, numbers: Iterator[int], readings: list[Reading]) -> None:
    """One client, which asks for `numbers` one after the other.

    Raises:
        AssertionError: the target is not this machine, or a stream was cut.
    """
    target = urlsplit(load.url)
    assert target.hostname in ("127.0.0.1", "localhost", "::1"), "only this machine is a target"
    port = target.port or 80
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        for number in numbers:
            body = load.body(number)
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            reading = Reading(time.monotonic())
            writer.write(head.encode() + body)
            await _read(reader, reading)
            readings.append(reading)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, reading: Reading) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head + await reader.read(_READ_BYTES)
    tail = b""
    while not tail.endswith(b"\r\n0\r\n\r\n") and tail != b"0\r\n\r\n":
        data = await reader.read(_READ_BYTES)
        assert data, "the stream was cut"
        now_s = time.monotonic()
        events = data.count(b'"content":"') - data.count(b'"content":""')
        if events:
            reading.writes += 1
            reading.events += events
            reading.at_s += [now_s] * events
            reading.first_s = reading.first_s or now_s
        tail = (tail + data)[-64:]
    reading.ended_s = time.monotonic()
    assert b"data: [DONE]" in tail, "the stream ended without its end"
