"""A worker is stopped, replaced by another of its name, and wakes: it leaves, and nobody is hurt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from proto import keys
from proto.names import new_id
from services.directory import Directory, DirectorySettings, open_directory
from services.mesh_settings import MeshSettings
from services.process import EXIT_WRONG_SETTING
from services.servers import Server, reserve_port
from tests.mesh.apart import LoneProcess, start_alone
from tests.tiny_model import write_tiny_llama
from tests.workers.faulty_link import FaultyLink, open_faulty_link
from tests.workers.harness import until
from workers.engine.simulated_model import SimulatedModel

NAME = "worker"
NUM_REQUESTS = 4
NUM_TOKENS = 60
LIMIT_S = 60.0
MOVES = "kvmesh_request_moves_total"


class Stage:
    """A router, a frontend, and one life after another of a worker."""

    def __init__(self, folder: Path, nats: Server, etcd: Server) -> None:
        self.ns = f"test-{new_id()}"
        self.directory = DirectorySettings(endpoints=[etcd.url], lease_ttl_s=2)
        self._nats = nats
        self._etcd = etcd
        self._folder = folder
        self._model = write_tiny_llama(folder / "tiny")
        self._port = reserve_port()
        self._closing = ExitStack()

    def start(self, kind: str, name: str, nats: str = "", /, **settings: Any) -> LoneProcess:
        mesh = MeshSettings(ns=self.ns, beat_s=0.25, lost_after_s=1.0, drain_limit_s=1.0)
        where = (self._folder, nats or self._nats.url, self._etcd.url)
        process = start_alone(kind, name, *where, mesh=mesh, directory=self.directory, **settings)
        self._closing.callback(process.process.close)
        return process

    def start_frontend(self) -> LoneProcess:
        return self.start("frontend", "frontend", port=self._port)

    def start_worker(self, log: str, nats: str = "") -> LoneProcess:
        """20 ms a token, each of which follows from the prompt."""
        time = SimulatedModel(step_s=0.02, first_token=20, num_tokens=200)
        worker = {"name": NAME, "model": str(self._model), "num_blocks": 256}
        return self.start("worker", log, nats, engine="simulated", simulated=time, **worker)

    async def ask(self, number: int) -> str:
        """The text of a whole answer."""
        url = f"http://127.0.0.1:{self._port}/v1/completions"
        prompt = [20 + number + index for index in range(40)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True}
        async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as http:
            answer = await http.post(url, json=body)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    async def ask_all(self) -> list[str]:
        return await asyncio.gather(*(self.ask(number) for number in range(NUM_REQUESTS)))

    def close(self) -> None:
        self._closing.close()


@asynccontextmanager
async def open_stage(folder: Path, nats: Server, etcd: Server) -> AsyncIterator[tuple[Stage, FaultyLink]]:
    """The link is what a worker may be cut off by: then nobody of its name is at the bus any more."""
    stage = Stage(folder, nats, etcd)
    try:
        async with open_faulty_link(nats.url, 1, lambda _: False) as link:
            yield stage, link
    finally:
        stage.close()


async def wait_ready(process: LoneProcess) -> None:
    async def is_ready() -> bool:
        return await asyncio.to_thread(lambda: process.is_ready)

    await until(f"{process.name} is ready", is_ready, LIMIT_S)


async def wait_metric(process: LoneProcess, metric: str, wanted: float) -> None:
    async def is_so() -> bool:
        return await asyncio.to_thread(process.metric, metric) == wanted

    await until(f"{metric} is {wanted}", is_so, LIMIT_S)


async def wait_unlisted(directory: Directory, ns: str) -> None:
    async def is_unlisted() -> bool:
        return not await directory.list(keys.workers(ns))

    await until("its lease is gone", is_unlisted, LIMIT_S)


def test_a_worker_that_wakes_beside_its_successor_leaves_and_takes_nothing_from_it(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    async def body(stage: Stage, link: FaultyLink, directory: Directory) -> None:
        router, frontend = stage.start("router", "router"), stage.start_frontend()
        former = stage.start_worker("former", link.url)
        for process in (router, frontend, former):
            await wait_ready(process)
        expected = await stage.ask_all()
        async with asyncio.TaskGroup() as tasks:
            moved = tasks.create_task(stage.ask_all(), name="requests that outlive the former one")
            await wait_metric(former, "kvmesh_sequences_running", NUM_REQUESTS)
            former.process.suspend()
            await wait_unlisted(directory, stage.ns)
            link.cut()
            successor = stage.start_worker("successor")
            await wait_ready(successor)
        assert moved.result() == expected
        held = [await directory.list(prefix(stage.ns)) for prefix in (keys.workers, keys.agents)]
        num_moves = await asyncio.to_thread(frontend.metric, MOVES)
        async with asyncio.TaskGroup() as tasks:
            undisturbed = tasks.create_task(stage.ask_all(), name="requests of the successor")
            await wait_metric(successor, "kvmesh_sequences_running", NUM_REQUESTS)
            former.process.resume()
            code = await asyncio.to_thread(former.process.wait, LIMIT_S)
        assert code == EXIT_WRONG_SETTING
        assert f"another worker named {NAME!r} is there" in former.log
        assert undisturbed.result() == expected
        assert await stage.ask_all() == expected
        assert [await directory.list(prefix(stage.ns)) for prefix in (keys.workers, keys.agents)] == held
        assert await asyncio.to_thread(frontend.metric, MOVES) == num_moves
        assert successor.is_ready

    async def run() -> None:
        async with (
            open_stage(tmp_path, nats_server, etcd_server) as (stage, link),
            open_directory(stage.directory) as directory,
        ):
            await body(stage, link, directory)

    asyncio.run(run())
