"""A worker is stopped, replaced by another of its name, and wakes: it leaves, and nobody is hurt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proto import keys
from services.directory import Directory, open_directory
from services.process import EXIT_WRONG_SETTING
from services.servers import Server
from tests.mesh.small_mesh import LIMIT_S, NUM_REQUESTS, SmallMesh, wait_metric, wait_ready
from tests.workers.faulty_link import FaultyLink, open_faulty_link
from tests.workers.harness import until

NAME = "worker"
MOVES = "kvmesh_request_moves_total"


@asynccontextmanager
async def open_mesh(folder: Path, nats: Server, etcd: Server) -> AsyncIterator[tuple[SmallMesh, FaultyLink]]:
    """The link is what a worker may be cut off by: then nobody of its name is at the bus any more."""
    mesh = SmallMesh(folder, nats, etcd)
    try:
        async with open_faulty_link(nats.url, 1, lambda _: False) as link:
            yield mesh, link
    finally:
        mesh.close()


async def wait_unlisted(directory: Directory, ns: str) -> None:
    async def is_unlisted() -> bool:
        return not await directory.list(keys.workers(ns))

    await until("its lease is gone", is_unlisted, LIMIT_S)


@pytest.mark.slow
def test_a_worker_that_wakes_beside_its_successor_leaves_and_takes_nothing_from_it(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    async def body(mesh: SmallMesh, link: FaultyLink, directory: Directory) -> None:
        router, frontend = mesh.start("router", "router"), mesh.start_frontend("frontend")
        former = mesh.start_worker("former", NAME, link.url)
        for process in (router, frontend, former):
            await wait_ready(process)
        expected = await mesh.ask_all("frontend")
        async with asyncio.TaskGroup() as tasks:
            moved = tasks.create_task(mesh.ask_all("frontend"), name="requests that outlive the former one")
            await wait_metric(former, "kvmesh_sequences_running", NUM_REQUESTS)
            former.process.suspend()
            await wait_unlisted(directory, mesh.ns)
            link.cut()
            successor = mesh.start_worker("successor", NAME)
            await wait_ready(successor)
        assert moved.result() == expected
        held = [await directory.list(prefix(mesh.ns)) for prefix in (keys.workers, keys.agents)]
        num_moves = await asyncio.to_thread(frontend.metric, MOVES)
        async with asyncio.TaskGroup() as tasks:
            undisturbed = tasks.create_task(mesh.ask_all("frontend"), name="requests of the successor")
            await wait_metric(successor, "kvmesh_sequences_running", NUM_REQUESTS)
            former.process.resume()
            code = await asyncio.to_thread(former.process.wait, LIMIT_S)
        assert code == EXIT_WRONG_SETTING
        assert f"another worker named {NAME!r} is there" in former.log
        assert undisturbed.result() == expected
        assert await mesh.ask_all("frontend") == expected
        assert [await directory.list(prefix(mesh.ns)) for prefix in (keys.workers, keys.agents)] == held
        assert await asyncio.to_thread(frontend.metric, MOVES) == num_moves
        assert successor.is_ready

    async def run() -> None:
        async with (
            open_mesh(tmp_path, nats_server, etcd_server) as (mesh, link),
            open_directory(mesh.directory) as directory,
        ):
            await body(mesh, link, directory)

    asyncio.run(run())
