"""Clients leave at random moments, by the hundred, while prefill workers die or live: nothing is left."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.mesh.deaths.crowd import LIMIT_S
from tests.mesh.deaths.mortal_mesh import MortalMesh

MODEL = "tiny"
NUM_AT_ONCE = 80
"""More than the workers compute at once: some wait at a router, some for their turn at a worker."""
LONGEST_STAY_S = 1.2
KILL_EACH_S = 0.4
VICTIM = "prefill-0"
SERVED = "kvmesh_attempts_served"


@dataclass
class Fates:
    """How many clients left, and how many had their whole answer before."""

    num_left: int = 0
    num_answered: int = 0


class Leavers:
    """`NUM_AT_ONCE` clients at a time, each of which stays for a random while."""

    def __init__(self, url: str, seed: int) -> None:
        self.fates = Fates()
        self._url = f"{url}/v1/completions"
        self._random = random.Random(seed)

    def run(self, num_clients: int) -> None:
        asyncio.run(self._run(num_clients))

    async def _run(self, num_clients: int) -> None:
        limits = httpx.Limits(max_connections=None)
        places = asyncio.Semaphore(NUM_AT_ONCE)
        client = httpx.AsyncClient(timeout=LIMIT_S, trust_env=False, limits=limits)
        async with client as http, asyncio.TaskGroup() as tasks:
            for index in range(num_clients):
                tasks.create_task(self._stay(http, places, index), name=f"client {index}")

    async def _stay(self, http: httpx.AsyncClient, places: asyncio.Semaphore, index: int) -> None:
        num_words = self._random.choice((3, 3, 40, 120))
        stay_s = self._random.random() * LONGEST_STAY_S
        body = {
            "model": MODEL,
            "prompt": f"{index} of {self._random.random()}: " + "once upon a time " * num_words,
            "max_tokens": 100,
            "stream": True,
        }
        async with places:
            try:
                async with asyncio.timeout(stay_s), http.stream("POST", self._url, json=body) as answer:
                    assert answer.status_code == 200, await answer.aread()
                    async for _ in answer.aiter_lines():
                        pass
                self.fates.num_answered += 1
            except TimeoutError:
                self.fates.num_left += 1


@contextmanager
def dying(mesh: MortalMesh) -> Iterator[list[int]]:
    """The prefill worker is killed again and again during the body; yields the pids of those that were."""
    is_over = threading.Event()
    killed: list[int] = []

    def kill_for_ever() -> None:
        while not is_over.wait(KILL_EACH_S):
            pid = mesh.running.pids[VICTIM]
            if pid not in killed:
                mesh.kill(VICTIM)
                killed.append(pid)

    killer = threading.Thread(target=kill_for_ever, name="killer")
    killer.start()
    try:
        yield killed
    finally:
        is_over.set()
        killer.join()


def check_rest(mesh: MortalMesh, leavers: Leavers, num_clients: int) -> None:
    """Everything is back with no new traffic, and then an answer comes as ever."""
    assert leavers.fates.num_left + leavers.fates.num_answered == num_clients
    assert leavers.fates.num_left > num_clients // 2
    mesh.running.wait_until(
        "no worker serves", lambda: sum(mesh.running.metric(name, SERVED) for name in mesh.decoders) == 0, 5
    )
    mesh.running.wait_at_rest()
    assert mesh.ask().status_code == 200


crowds = pytest.mark.parametrize(
    "num_clients", [150, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)


@crowds
def test_a_crowd_that_leaves_at_random_moments_leaves_nothing_behind(
    mesh: MortalMesh, num_clients: int
) -> None:
    leavers = Leavers(mesh.running.url, num_clients)
    leavers.run(num_clients)
    check_rest(mesh, leavers, num_clients)


@pytest.mark.slow
@crowds
def test_a_crowd_that_leaves_while_prefill_workers_die_leaves_nothing_behind(
    mesh: MortalMesh, num_clients: int
) -> None:
    pids = mesh.running.pids
    leavers = Leavers(mesh.running.url, num_clients + 1)
    with dying(mesh) as killed:
        leavers.run(num_clients)
    assert killed
    mesh.wait_back(pids, VICTIM)
    check_rest(mesh, leavers, num_clients)
