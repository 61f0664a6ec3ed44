"""Workers come and go while requests flow: whoever is in the directory answers, and nobody is refused."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role
from services.bus import BusSettings, open_bus
from services.mesh_settings import MeshSettings
from services.servers import Server
from tests.mesh.apart import LoneProcess, start_alone
from tests.mesh.token_client import TokenClient
from tests.tiny_model import write_tiny_llama
from tests.workers.harness import BEAT_S, LOST_AFTER_S, Fleet, Worker, random_prompt, until
from workers.engine.simulated_model import SimulatedModel

ENGINE = SimulatedModel(step_s=0.002, first_token=20, num_tokens=200)
NUM_ASKERS = 4
NUM_PROMPT = 20
NUM_LEAVING = 3
"""A request that was refused by so many is offered to one more."""
START_S = 60.0
LIMIT_S = 550.0


class Crowd:
    """Workers of one namespace behind one router. `anchor` is there all the time."""

    def __init__(self, fleet: Fleet, router: LoneProcess, model: Path) -> None:
        self.fleet = fleet
        self.router = router
        self.model = model
        self.num_answers = 0
        self._served: set[str] = set()
        self._answered = asyncio.Event()

    def start(self, name: str) -> Worker:
        simulated: dict[str, Any] = {"engine": "simulated", "simulated": ENGINE, "num_blocks": 128}
        return self.fleet.start(name, Role.DECODE, self.model, **simulated)

    async def ask_for_ever(self, client: TokenClient, number: int) -> None:
        """Prompts that share nothing, so that every worker is as good as another."""
        while True:
            prompt = random_prompt(NUM_PROMPT, seed=1000 * self.num_answers + number)
            answer = await client.ask("tiny", prompt, 2)
            assert answer.end is not None and answer.end.fault is None, answer.end
            self.num_answers += 1
            self._served.add(answer.worker)
            self._answered.set()

    async def come_and_go(self, num_workers: int) -> None:
        """So many workers register, answer at least one request each, and leave, a few at a time.

        Whoever leaves may meet an offer too late to say so, when its router is slow; who registers may not.
        """
        silent = await self._num_silent()
        workers = [self.start(f"w-{new_id()}") for _ in range(num_workers)]
        names = {worker.name for worker in workers}
        await self.fleet.wait_ready(*names)
        while not names <= self._served:
            self._answered.clear()
            await self._answered.wait()
        assert await self._num_silent() == silent
        while workers:
            leaving, workers = workers[:NUM_LEAVING], workers[NUM_LEAVING:]
            for worker in leaving:
                worker.process.terminate()
            for worker in leaving:
                assert await asyncio.to_thread(worker.process.wait, START_S) == 0, worker.log
        await until("the router has the anchor alone", self.has_anchor_alone, START_S)

    async def has_anchor_alone(self) -> bool:
        return await asyncio.to_thread(self.router.metric, "kvmesh_route_workers") == 1

    async def _num_silent(self) -> float:
        """Offers that met nobody."""
        name = "kvmesh_route_offers_not_taken_total"
        return await asyncio.to_thread(self.router.metric, name, reason="no_responder")


@pytest.fixture
def crowd(nats_server: Server, etcd_server: Server, namespace: str, tmp_path: Path) -> Iterator[Crowd]:
    model = write_tiny_llama(tmp_path / "tiny")
    fleet = Fleet(nats_server, etcd_server, namespace, tmp_path)
    mesh = MeshSettings(ns=namespace, beat_s=BEAT_S, lost_after_s=LOST_AFTER_S, drain_limit_s=1)
    router = start_alone(
        "router", "router", tmp_path, nats_server.url, etcd_server.url, mesh=mesh, offer_limit_s=30.0
    )
    crowd = Crowd(fleet, router, model)
    try:
        crowd.start("anchor")
        asyncio.run(fleet.wait_ready("anchor"))
        asyncio.run(until("the router has the anchor", crowd.has_anchor_alone, START_S))
        yield crowd
    finally:
        router.process.close()
        fleet.close()


@asynccontextmanager
async def requests_flowing(crowd: Crowd) -> AsyncIterator[None]:
    async with (
        asyncio.timeout(LIMIT_S),
        open_bus(BusSettings(url=crowd.fleet.nats.url), "asks") as bus,
        asyncio.TaskGroup() as tasks,
    ):
        client = TokenClient(bus, crowd.fleet.ns)
        await client.open()
        askers = [
            tasks.create_task(crowd.ask_for_ever(client, number), name=f"asker {number}")
            for number in range(NUM_ASKERS)
        ]
        yield
        for asker in askers:
            asker.cancel()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_offer_meets_a_worker_that_does_not_listen_yet(crowd: Crowd) -> None:
    async def body() -> None:
        async with requests_flowing(crowd):
            for _ in range(5):
                await crowd.come_and_go(6)

    asyncio.run(body())
