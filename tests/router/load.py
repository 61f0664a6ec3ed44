"""Requests at a rate, or from so many clients that each wait for their answers; and what became of each."""

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import count

from proto.errors import KvmeshError, from_fault
from proto.requests import GenerateRequest, Refused, Routed
from tests.router.scene import Mesh
from tests.router.timed_engine import TimedEngine


class Load:
    """`first_s` seconds to each accepted request's first token, `refused_s` to each refusal."""

    def __init__(self, mesh: Mesh, engines: list[TimedEngine]) -> None:
        self.refusals: list[KvmeshError] = []
        self.refused_s: list[float] = []
        self.trip_s: list[float] = []  # bare round trips with the bus, at the same moments
        self.chosen: list[str] = []
        self._accepted: dict[str, float] = {}
        self._mesh = mesh
        self._engines = engines
        self._ends: dict[str, asyncio.Event] = {}
        for engine in engines:
            engine.on_end = self._end

    async def play_at(self, rate: float, duration_s: float, make: Callable[[int], GenerateRequest]) -> None:
        """At random moments, `rate` a second on average, whatever becomes of them."""
        draw, loop = random.Random(4), asyncio.get_running_loop()
        began_s = at_s = loop.time()
        number = 0
        async with asyncio.TaskGroup() as tasks:
            while at_s < began_s + duration_s:
                at_s += draw.expovariate(rate)
                await asyncio.sleep(at_s - loop.time())
                tasks.create_task(self._send(make(number)), name=f"request-{number}")
                number += 1

    async def play_from(
        self, num_clients: int, duration_s: float, make: Callable[[int], GenerateRequest]
    ) -> None:
        """Each client sends the next as soon as it has the answer to the last."""
        until_s = asyncio.get_running_loop().time() + duration_s
        numbers = count()
        async with asyncio.TaskGroup() as tasks:
            for client in range(num_clients):
                tasks.create_task(self._send_until(until_s, numbers, make), name=f"client-{client}")

    async def _send_until(
        self, until_s: float, numbers: Iterator[int], make: Callable[[int], GenerateRequest]
    ) -> None:
        while asyncio.get_running_loop().time() < until_s:
            request = make(next(numbers))
            ended = self._ends[request.request] = asyncio.Event()
            await self._send(request)
            if request.request in self._accepted:
                await ended.wait()

    def _end(self, request: str) -> None:
        if request in self._ends:
            self._ends.pop(request).set()

    async def _send(self, request: GenerateRequest) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        reply = await self._mesh.route(request)
        if isinstance(reply, Refused):
            self.refused_s.append(loop.time() - began_s)
            self.refusals.append(from_fault(reply.fault))
            began_s = loop.time()
            await self._mesh.bus.flush(5.0)
            self.trip_s.append(loop.time() - began_s)
            return
        self._accepted[request.request] = began_s
        if isinstance(reply, Routed):
            self.chosen.append(reply.decision.worker)

    @property
    def num_accepted(self) -> int:
        return len(self._accepted)

    @property
    def is_served(self) -> bool:
        """Whether every accepted request has had its first token."""
        return sum(1 for _ in self._firsts()) == len(self._accepted)

    @property
    def first_s(self) -> list[float]:
        return [at_s - self._accepted[request] for request, at_s in self._firsts()]

    def _firsts(self) -> Iterator[tuple[str, float]]:
        for engine in self._engines:
            for request, at_s in engine.first_s.items():
                if request in self._accepted:
                    yield request, at_s


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]
