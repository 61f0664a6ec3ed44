"""Simulated workers as processes: what a sudden death leaves, and a thousand workers on one machine."""

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from proto import keys, subjects
from proto.names import new_id
from proto.reports import BEATS, LoadReport
from router.settings import RouterSettings
from services.bus import Bus, Delivery, open_bus
from services.directory import Directory, open_directory
from services.mesh_settings import MeshSettings
from services.process import run_process
from services.servers import Server
from tests.mesh.token_client import TokenClient
from tests.services.waiting import wait_for
from tests.workers.forked import ForkedProcess
from tests.workers.harness import until
from tests.workers.simulated.scene import MODEL, settings_of
from workers.simulated.settings import SimulateSettings

NUM_WORKERS = 1000
NUM_REQUESTS = 400
MAX_AT_ONCE = 40
READY_S = 60.0
LOOK_S = 5.0
MAX_IDLE_SHARE = 0.9  # of one core; a machine that others use measures more than an idle one
MAX_MIB = 800


def _simulate(settings: SimulateSettings, log: str) -> None:
    from workers.simulated.process import run_simulation

    _redirect(log)
    sys.exit(run_process(lambda shutdown: run_simulation(settings, shutdown), drain_limit_s=1.0))


def _route(settings: RouterSettings, log: str) -> None:
    from router.service import run_router

    _redirect(log)
    sys.exit(run_process(lambda shutdown: run_router(settings, shutdown), drain_limit_s=1.0))


def _redirect(log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)


@contextmanager
def forked(
    name: str, target: Callable[..., None], settings: msgspec.Struct, folder: Path
) -> Iterator[ForkedProcess]:
    process = ForkedProcess(name, target, settings, str(folder / f"{name}.log"))
    try:
        yield process
    finally:
        process.close()


async def count(directory: Directory, ns: str) -> int:
    return len(await directory.list(keys.workers(ns)))


def test_a_killed_process_takes_all_its_workers_with_it(
    nats_server: Server, etcd_server: Server, text_folder: Path, tmp_path: Path
) -> None:
    async def body() -> None:
        settings = settings_of(nats_server, etcd_server, text_folder, workers=5)
        ns = settings.mesh.ns

        async def are_there() -> bool:
            return await count(directory, ns) == 5

        async def are_gone() -> bool:
            return await count(directory, ns) == 0

        async with open_directory(settings.directory) as directory:
            with forked("simulate", _simulate, settings, tmp_path) as process:
                await until("all are registered", are_there)
                process.kill()
                await until("their leases have ended", are_gone)

    asyncio.run(body())


class Load:
    """Requests one after the other, some at once, as a router spreads them."""

    def __init__(self, client: TokenClient) -> None:
        self.ttft_s: list[float] = []
        self.workers: set[str] = set()
        self._client = client
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for seed in range(NUM_REQUESTS):
                tasks.create_task(self._ask(seed), name=f"request {seed}")

    async def _ask(self, seed: int) -> None:
        chosen = random.Random(seed)
        prompt = [chosen.randrange(10, 500) for _ in range(200)]
        async with self._free:
            answer = await self._client.ask(MODEL, prompt, 16)
        assert len(answer.tokens) == 16
        self.ttft_s.append(answer.first_s)
        self.workers.add(answer.worker)


async def idle_share(process: psutil.Process) -> float:
    """How much of one core the process takes while nothing is asked of it."""

    def spent_s() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    before_s, began_s = spent_s(), time.monotonic()
    await asyncio.sleep(LOOK_S)
    return (spent_s() - before_s) / (time.monotonic() - began_s)


async def hear_all(bus: Bus, ns: str) -> None:
    """Until each has said how it is, twice."""
    heard: dict[str, int] = {}

    def hear(delivery: Delivery) -> None:
        beat = BEATS.decode(delivery.payload)
        if isinstance(beat, LoadReport):
            heard[beat.worker] = heard.get(beat.worker, 0) + 1

    subscription = await bus.subscribe(subjects.beat_any(ns), hear)
    await wait_for(lambda: len(heard) == NUM_WORKERS and min(heard.values()) >= 2, 30)
    await subscription.close()


@pytest.mark.slow
def test_a_thousand_workers_serve_from_one_process(
    nats_server: Server, etcd_server: Server, text_folder: Path, tmp_path: Path
) -> None:
    async def body() -> None:
        mesh = MeshSettings(ns=f"test-{new_id()}", drain_limit_s=1.0)
        settings = msgspec.structs.replace(
            settings_of(nats_server, etcd_server, text_folder, workers=NUM_WORKERS, num_blocks=4096),
            mesh=mesh,
        )
        settings = msgspec.structs.replace(
            settings, directory=msgspec.structs.replace(settings.directory, lease_ttl_s=10)
        )
        route = RouterSettings(mesh=mesh, bus=settings.bus, directory=settings.directory)

        async def are_there() -> bool:
            return await count(directory, mesh.ns) == NUM_WORKERS

        async with (
            open_directory(settings.directory) as directory,
            open_bus(settings.bus, "test") as bus,
        ):
            with forked("router", _route, route, tmp_path) as router:
                began_s = time.monotonic()
                with forked("simulate", _simulate, settings, tmp_path) as process:
                    await until("all are registered", are_there, READY_S)
                    ready_s = time.monotonic() - began_s
                    await hear_all(bus, mesh.ns)
                    simulated, routing = psutil.Process(process.pid), psutil.Process(router.pid)
                    share = await idle_share(simulated)
                    router_share = await idle_share(routing)
                    client = TokenClient(bus, mesh.ns)
                    await client.open()
                    load = Load(client)
                    began_s = time.monotonic()
                    await load.run()
                    rate = NUM_REQUESTS / (time.monotonic() - began_s)
                    mib = simulated.memory_info().rss / 2**20
                    ttft_s = sorted(load.ttft_s)
                    print(
                        f"{NUM_WORKERS} workers: ready in {ready_s:.1f} s; at rest {share:.0%} of a core and"
                        f" {mib:.0f} MiB, the router {router_share:.0%}; {rate:.0f} requests a second over"
                        f" {len(load.workers)} workers, TTFT p50 {ttft_s[NUM_REQUESTS // 2] * 1e3:.0f} ms,"
                        f" p99 {ttft_s[NUM_REQUESTS * 99 // 100] * 1e3:.0f} ms"
                    )
                    assert share < MAX_IDLE_SHARE
                    assert mib < MAX_MIB
                    assert len(load.workers) > NUM_REQUESTS / 4
                    assert await are_there()

    asyncio.run(body())
