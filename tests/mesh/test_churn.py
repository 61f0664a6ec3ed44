"""Workers come and go all the time under load, some by a kill: no request fails, nothing is left."""

import asyncio
import itertools
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from proto import keys, subjects
from proto.codec import encode
from proto.control import CONTROL_REPLIES, AskHoldings, Holdings
from services.bus import Bus, BusSettings, open_bus
from services.directory import Directory, DirectorySettings, open_directory
from services.servers import Server
from tests.mesh.running_mesh import EMPTY_AT_REST
from tests.mesh.simulated_mesh import SimulatedMesh
from tests.workers.harness import is_at_rest, until
from workers.engine.simulated_model import SimulatedModel

MODEL = "text"
CROWD = {
    "simulated": SimulatedModel(first_token=4, num_tokens=60, step_s=0.004, prefill_token_s=0.00001),
    "num_blocks": 256,
    "context_tokens": 1024,
}
NUM_CLIENTS = 12
NUM_PROMPTS = 4
NUM_PROMPT = 40
NUM_TOKENS = 120
REQUEST_LIMIT_S = 120.0
PATIENCE = {"request_limit_s": REQUEST_LIMIT_S, "accept_limit_s": 20.0, "reroute_limit_s": 60.0}
"""A machine on which dozens of processes start stands still for seconds; who is dead shows by his beats."""
MARGIN_S = 5.0
REST_S = 30.0
START_S = 120.0
KILLED_EACH = 4
"""Of so many crowds that are removed, the last one is killed."""


class Clients:
    """Each asks again once it is answered, and always has the same answer to a prompt."""

    def __init__(self, url: str) -> None:
        self.num_answers = 0
        self.longest_s = 0.0
        self._url = url
        self._texts: dict[tuple[int, int], str] = {}

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """For the time of the body, which fails with the first request that does; awaits the last ones."""
        is_over = asyncio.Event()
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(base_url=self._url, timeout=None, trust_env=False, limits=limits) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(NUM_CLIENTS):
                tasks.create_task(self._ask_on(http, number, is_over), name=f"client {number}")
            yield
            is_over.set()

    async def wait_serve(self, workers: set[str]) -> None:
        """Until each of them has answered a request that was meant for it alone. Among a hundred it may be
        long until one is chosen for any other."""
        async with httpx.AsyncClient(base_url=self._url, timeout=REQUEST_LIMIT_S, trust_env=False) as http:
            for worker in workers:
                await until(f"{worker} serves", partial(self._serves, http, worker), START_S)

    async def _serves(self, http: httpx.AsyncClient, worker: str) -> bool:
        """False while it is not known to the router."""
        body = {"model": MODEL, "prompt": [10], "max_tokens": 1, "ignore_eos": True, "worker_id": worker}
        reply = await http.post("/v1/completions", json=body)
        assert reply.status_code == 200 or "there is no such worker" in reply.text, reply.text
        return reply.status_code == 200

    async def _ask_on(self, http: httpx.AsyncClient, number: int, is_over: asyncio.Event) -> None:
        for each in itertools.cycle(range(NUM_PROMPTS)):
            await self._ask(http, number, each)
            if is_over.is_set():
                return

    async def _ask(self, http: httpx.AsyncClient, number: int, each: int) -> None:
        drawn = random.Random(NUM_PROMPTS * number + each)
        prompt = [drawn.randrange(10, 500) for _ in range(NUM_PROMPT)]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True}
        began_s = time.monotonic()
        async with asyncio.timeout(REQUEST_LIMIT_S + MARGIN_S):
            reply = await http.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        assert answer["choices"][0]["finish_reason"] == "length"
        text = answer["choices"][0]["text"]
        assert self._texts.setdefault((number, each), text) == text
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        self.num_answers += 1


class Churn:
    """Crowds of `num_each` workers are added and removed. `names` are the workers that are there."""

    def __init__(self, mesh: SimulatedMesh, clients: Clients, num_each: int) -> None:
        self.num_added = 0
        self.num_removed = 0
        self._mesh = mesh
        self._clients = clients
        self._num_each = num_each
        self._crowds: list[str] = []

    @property
    def names(self) -> set[str]:
        return {f"{crowd}-{number}" for crowd in self._crowds for number in range(self._num_each)}

    async def add(self) -> None:
        """On return each of the new ones has served."""
        name = f"crowd-{self.num_added}"
        self.num_added += 1
        self._crowds.append(name)
        self._mesh.start_crowd(name, MODEL, workers=self._num_each, **CROWD)
        await self._clients.wait_serve({f"{name}-{number}" for number in range(self._num_each)})

    async def remove(self) -> None:
        """The crowd that has been there for longest."""
        self.num_removed += 1
        name = self._crowds.pop(0)
        if self.num_removed % KILLED_EACH:
            await asyncio.to_thread(self._mesh.end_crowd, name)
        else:
            self._mesh.kill_crowd(name)


async def check_rest(mesh: SimulatedMesh, names: set[str]) -> None:
    """Only what is there is known, nothing runs, and every block is free."""
    async with (
        open_bus(BusSettings(url=mesh.nats), "test") as bus,
        open_directory(DirectorySettings(endpoints=[mesh.etcd])) as directory,
    ):

        async def is_known() -> bool:
            return await listed(directory, mesh.mesh.ns) == (names, names) and mesh.num_workers == len(names)

        await until("only those that are there are known", is_known, REST_S)

        async def are_at_rest() -> bool:
            return not gauges(mesh) and all([is_at_rest(await holdings(bus, mesh, name)) for name in names])

        await until("the mesh is at rest", are_at_rest, REST_S)


async def listed(directory: Directory, ns: str) -> tuple[set[str], set[str]]:
    """Who has a card, and whose memory can be reached."""
    workers, agents = await directory.list(keys.workers(ns)), await directory.list(keys.agents(ns))
    return {keys.last_part(one.key) for one in workers}, {keys.last_part(one.key) for one in agents}


def gauges(mesh: SimulatedMesh) -> dict[str, float]:
    """What is not 0 at the router and at the frontend."""
    found = {
        name: mesh.processes[kind].metric(name)
        for kind in ("router", "frontend")
        for name in EMPTY_AT_REST[kind]
    }
    return {name: value for name, value in found.items() if value}


async def holdings(bus: Bus, mesh: SimulatedMesh, worker: str) -> Holdings:
    subject = subjects.worker_control(mesh.mesh.ns, worker)
    reply = CONTROL_REPLIES.decode(await bus.request(subject, encode(AskHoldings()), 10))
    assert isinstance(reply, Holdings)
    return reply


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_each", "num_added", "num_removed"),
    [
        pytest.param(5, 5, 3, id="25 and 15"),
        pytest.param(10, 25, 15, id="250 and 150", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_workers_that_are_added_and_removed_under_load_cost_no_request(
    nats_server: Server,
    etcd_server: Server,
    tmp_path: Path,
    num_each: int,
    num_added: int,
    num_removed: int,
) -> None:
    async def body(mesh: SimulatedMesh) -> None:
        clients = Clients(mesh.url)
        churn = Churn(mesh, clients, num_each)
        mesh.start_crowd("anchor", MODEL, workers=2, **CROWD)
        await asyncio.to_thread(mesh.wait_workers, 2)
        began_s = time.monotonic()
        async with clients.asking():
            for number in range(1, num_added + 1):
                async with asyncio.TaskGroup() as changes:
                    changes.create_task(churn.add(), name="addition")
                    if churn.num_removed < math.floor(number * num_removed / num_added):
                        changes.create_task(churn.remove(), name="removal")
        await check_rest(mesh, churn.names | {"anchor-0", "anchor-1"})
        assert churn.num_removed == num_removed
        assert clients.longest_s < REQUEST_LIMIT_S
        print(
            f"{num_added * num_each} workers added and {num_removed * num_each} removed within"
            f" {time.monotonic() - began_s:.0f} s, {clients.num_answers} answers, the slowest in"
            f" {clients.longest_s:.1f} s"
        )

    with SimulatedMesh(tmp_path, nats_server.url, etcd_server.url, serving=PATIENCE) as mesh:
        asyncio.run(body(mesh))
