"""A small mesh of lone processes with short bounds: a router, frontends, and workers with 20 ms a token."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from proto.names import new_id
from services.directory import DirectorySettings
from services.mesh_settings import MeshSettings
from services.servers import Server, reserve_port
from tests.mesh.apart import LoneProcess, start_alone
from tests.tiny_model import write_tiny_llama
from tests.workers.harness import until
from workers.engine.simulated_model import SimulatedModel

NUM_REQUESTS = 4
NUM_TOKENS = 60
LIMIT_S = 60.0


class SmallMesh:
    """Its processes are started one by one, and all closed together."""

    def __init__(self, folder: Path, nats: Server, etcd: Server) -> None:
        self.ns = f"test-{new_id()}"
        self.directory = DirectorySettings(endpoints=[etcd.url], lease_ttl_s=2)
        self.ports: dict[str, int] = {}
        self._nats = nats
        self._etcd = etcd
        self._folder = folder
        self._model = write_tiny_llama(folder / "tiny")
        self._closing = ExitStack()

    def start(
        self, kind: str, name: str, nats: str = "", drain_limit_s: float = 1.0, /, **settings: Any
    ) -> LoneProcess:
        mesh = MeshSettings(ns=self.ns, beat_s=0.25, lost_after_s=1.0, drain_limit_s=drain_limit_s)
        where = (self._folder, nats or self._nats.url, self._etcd.url)
        process = start_alone(kind, name, *where, mesh=mesh, directory=self.directory, **settings)
        self._closing.callback(process.process.close)
        return process

    def start_frontend(
        self, name: str, drain_limit_s: float = 1.0, *, beside: str | None = None
    ) -> LoneProcess:
        """`beside`: on the port of another one, which was started so, too, if only beside itself."""
        self.ports[name] = self.ports.get(beside or name) or reserve_port()
        shares = beside is not None
        return self.start("frontend", name, "", drain_limit_s, port=self.ports[name], shares_port=shares)

    def start_worker(self, log: str, name: str, nats: str = "") -> LoneProcess:
        """Each of its tokens follows from the prompt."""
        time = SimulatedModel(step_s=0.02, first_token=20, num_tokens=200)
        worker = {"name": name, "model": str(self._model), "num_blocks": 256}
        return self.start("worker", log, nats, engine="simulated", simulated=time, **worker)

    async def try_ask(self, frontend: str, number: int) -> httpx.Response:
        url = f"http://127.0.0.1:{self.ports[frontend]}/v1/completions"
        prompt = [20 + number + index for index in range(40)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True}
        async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as http:
            return await http.post(url, json=body)

    async def ask_all(self, frontend: str) -> list[str]:
        """The texts of whole answers."""
        answers = await asyncio.gather(*(self.try_ask(frontend, number) for number in range(NUM_REQUESTS)))
        assert [answer.status_code for answer in answers] == [200] * NUM_REQUESTS, answers
        return [answer.json()["choices"][0]["text"] for answer in answers]

    def close(self) -> None:
        self._closing.close()


async def wait_ready(process: LoneProcess) -> None:
    async def is_ready() -> bool:
        return await asyncio.to_thread(lambda: process.is_ready)

    await until(f"{process.name} is ready", is_ready, LIMIT_S)


async def wait_metric(process: LoneProcess, metric: str, wanted: float) -> None:
    async def is_so() -> bool:
        return await asyncio.to_thread(process.metric, metric) == wanted

    await until(f"{metric} is {wanted}", is_so, LIMIT_S)
