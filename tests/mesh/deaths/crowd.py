"""Clients side by side, each streaming texts; what every one of them has seen is there to be judged."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

LIMIT_S = 120.0
DATA = "data: "
DONE = "[DONE]"


@dataclass
class Reading:
    """One answer as its client has seen it so far. Units: `began_s`, `ended_s` on the monotonic clock."""

    prompt: str
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    status: int = 0
    pieces: list[str] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    num_done: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def took_s(self) -> float:
        """Endless while it has not ended."""
        return math.inf if self.ended_s is None else self.ended_s - self.began_s

    @property
    def is_whole(self) -> bool:
        """It ended once, by its length, and nothing else was said of its end."""
        return (self.status, self.finishes, self.faults, self.num_done) == (200, ["length"], [], 1)

    def take(self, line: str) -> None:
        """One line of the stream, or of what came in its place."""
        if self.status != 200:
            self.faults.append(line)
        elif line == DATA + DONE:
            self.num_done += 1
        elif line.startswith(DATA):
            self._take_event(line.removeprefix(DATA))

    def _take_event(self, data: str) -> None:
        event = json.loads(data)
        if "error" in event:
            self.faults.append(data)
        for choice in event.get("choices", ()):
            self.pieces.append(choice["text"])
            self.finishes += [choice["finish_reason"]] if choice["finish_reason"] else []


class Crowd:
    """One client a prompt. Runs in a thread of its own; see `reading` and `under_load`.

    Prompts of different `salt` share no KV.
    """

    def __init__(self, url: str, model: str, prompts: Sequence[str], num_tokens: int, salt: str) -> None:
        self.readings: list[Reading] = []
        self.is_over = threading.Event()
        self._url = f"{url}/v1/completions"
        self._model = model
        self._prompts = prompts
        self._num_tokens = num_tokens
        self._salt = salt

    @property
    def ended(self) -> list[Reading]:
        return [reading for reading in self.readings if reading.ended_s is not None]

    def least_pieces(self) -> int:
        """What the slowest of the clients has of its text; 0 until all have begun."""
        if len(self.readings) < len(self._prompts):
            return 0
        return min(len(reading.pieces) for reading in self.readings)

    def wrongs(self, expected: dict[str, str]) -> list[Reading]:
        """Answers that are not whole, or not those of an undisturbed mesh."""
        return [one for one in self.readings if not one.is_whole or one.text != expected[one.prompt]]

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(timeout=LIMIT_S, limits=limits, trust_env=False) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for index, prompt in enumerate(self._prompts):
                tasks.create_task(self._read_on(http, prompt), name=f"client {index}")

    async def _read_on(self, http: httpx.AsyncClient, prompt: str) -> None:
        await self._read(http, prompt)
        while not self.is_over.is_set():
            await self._read(http, prompt)

    async def _read(self, http: httpx.AsyncClient, prompt: str) -> None:
        reading = Reading(prompt)
        self.readings.append(reading)
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": self._num_tokens,
            "stream": True,
            "ignore_eos": True,
            "cache_salt": self._salt,
            "temperature": 0,
        }
        try:
            async with http.stream("POST", self._url, json=body) as response:
                reading.status = response.status_code
                async for line in response.aiter_lines():
                    reading.take(line)
        except httpx.HTTPError as error:
            reading.faults.append(repr(error))
        reading.ended_s = time.monotonic()


@contextmanager
def reading(crowd: Crowd) -> Iterator[Crowd]:
    """Each client reads one answer, to its end, which the body's end waits for."""
    crowd.is_over.set()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(crowd.run)
        yield crowd
        running.result(LIMIT_S)


@contextmanager
def under_load(crowd: Crowd) -> Iterator[Crowd]:
    """Each client reads one answer after the other; the body's end waits for the last ones."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(crowd.run)
        try:
            yield crowd
        finally:
            crowd.is_over.set()
        running.result(LIMIT_S)
