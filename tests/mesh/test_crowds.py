"""Crowds of workers come and go while requests flow through a frontend and a router: nobody is refused."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from services.servers import Server
from tests.mesh.simulated_mesh import SimulatedMesh
from workers.engine.simulated_model import SimulatedModel

MODEL = "text"
ENGINE = SimulatedModel(first_token=4, num_tokens=60, step_s=0.002, prefill_token_s=0.00001)
CROWD = {"simulated": ENGINE, "num_blocks": 128, "context_tokens": 1024}
NUM_ANCHORS = 2
NUM_ASKERS = 8
NUM_PROMPT = 20
LIMIT_S = 550.0


class Askers:
    """Clients that each send the next request once the last is answered. `served` are the workers so far."""

    def __init__(self, mesh: SimulatedMesh) -> None:
        self.served: set[str] = set()
        self.num_answers = 0
        self._mesh = mesh
        self._answered = asyncio.Event()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """For the time of the body, which fails with the first request that does."""
        client = httpx.AsyncClient(base_url=self._mesh.url, timeout=LIMIT_S, trust_env=False)
        async with client, asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            askers = [
                tasks.create_task(self._ask_for_ever(client, number), name=f"asker {number}")
                for number in range(NUM_ASKERS)
            ]
            yield
            for asker in askers:
                asker.cancel()

    async def wait_served(self, workers: set[str]) -> None:
        """Until each of them has answered a request."""
        while not workers <= self.served:
            self._answered.clear()
            await self._answered.wait()

    async def _ask_for_ever(self, client: httpx.AsyncClient, number: int) -> None:
        """Prompts that share nothing, so that every worker is as good as another."""
        draw = random.Random(number)
        headers = {"x-kvmesh-facts": "1"}
        while True:
            prompt = [draw.randrange(10, 500) for _ in range(NUM_PROMPT)]
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
            answer = await client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            self.served.add(answer.json()["kvmesh"]["choices"][0]["worker"])
            self.num_answers += 1
            self._answered.set()


class Crowds:
    """One crowd after another registers, serves and leaves. `num_late` offers met a worker that had left."""

    def __init__(self, mesh: SimulatedMesh, askers: Askers) -> None:
        self.num_late = 0.0
        self._mesh = mesh
        self._askers = askers

    async def come_and_go(self, name: str, num_workers: int) -> None:
        """Whoever has withdrawn may meet an offer of a router that has not heard of it; nobody else may."""
        silent = await self._num_silent()
        self._mesh.start_crowd(name, MODEL, workers=num_workers, **CROWD)
        await self._askers.wait_served({f"{name}-{number}" for number in range(num_workers)})
        await asyncio.to_thread(self._mesh.wait_workers, NUM_ANCHORS + num_workers)
        assert await self._num_silent() == silent
        await asyncio.to_thread(self._mesh.end_crowd, name)
        await asyncio.to_thread(self._mesh.wait_workers, NUM_ANCHORS)
        self.num_late += await self._num_silent() - silent

    async def _num_silent(self) -> float:
        """Offers that met nobody."""
        name = "kvmesh_route_offers_not_taken_total"
        return await asyncio.to_thread(self._mesh.processes["router"].metric, name, reason="no_responder")


def check_crowds(
    nats_server: Server, etcd_server: Server, folder: Path, num_crowds: int, num_workers: int
) -> None:
    async def body(mesh: SimulatedMesh) -> None:
        askers = Askers(mesh)
        crowds = Crowds(mesh, askers)
        async with askers.asking():
            for number in range(num_crowds):
                await crowds.come_and_go(f"crowd-{number}", num_workers)
        print(
            f"{num_crowds * num_workers} registrations, {askers.num_answers} answers,"
            f" {crowds.num_late:.0f} offers to workers that had left"
        )

    with SimulatedMesh(folder, nats_server.url, etcd_server.url) as mesh:
        mesh.start_crowd("anchor", MODEL, workers=NUM_ANCHORS, **CROWD)
        mesh.wait_workers(NUM_ANCHORS)
        asyncio.run(body(mesh))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_crowd_that_comes_and_goes_together_costs_no_request(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    check_crowds(nats_server, etcd_server, tmp_path, num_crowds=1, num_workers=20)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_registrations_meet_no_silence(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    check_crowds(nats_server, etcd_server, tmp_path, num_crowds=10, num_workers=20)
