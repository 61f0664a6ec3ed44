"""A frontend is told to end under its streams: they end whole, new requests go elsewhere, and it is gone."""

import asyncio
from pathlib import Path

import httpx

from services.servers import Server
from tests.mesh.apart import LoneProcess
from tests.mesh.small_mesh import LIMIT_S, NUM_REQUESTS, SmallMesh, wait_metric, wait_ready
from tests.workers.harness import until


def test_a_frontend_that_is_told_to_end_lets_its_streams_end_and_takes_no_more(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    mesh = SmallMesh(tmp_path, nats_server, etcd_server)

    async def takes_no_more() -> bool:
        """Refused in words, or no one listens any more."""
        try:
            return (await mesh.try_ask("leaver", 0)).status_code == 503
        except httpx.TransportError:
            return True

    async def body() -> None:
        leaver, other = mesh.start_frontend("leaver", 30.0), mesh.start_frontend("other")
        worker = mesh.start_worker("worker", "worker")
        for process in (mesh.start("router", "router"), leaver, other, worker):
            await wait_ready(process)
        expected = await mesh.ask_all("other")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(mesh.ask_all("leaver"), name="requests of the leaver")
            await wait_metric(worker, "kvmesh_sequences_running", NUM_REQUESTS)
            leaver.process.terminate()
            await until("it takes no more", takes_no_more, LIMIT_S)
            elsewhere = tasks.create_task(mesh.ask_all("other"), name="requests of the other")
        assert running.result() == elsewhere.result() == expected
        assert await asyncio.to_thread(leaver.process.wait, LIMIT_S) == 0, leaver.log
        await wait_metric(worker, "kvmesh_attempts_served", 0)

    try:
        asyncio.run(body())
    finally:
        mesh.close()


def test_frontends_on_one_port_share_its_requests_and_one_leaves_them_to_the_other(
    nats_server: Server, etcd_server: Server, tmp_path: Path
) -> None:
    mesh = SmallMesh(tmp_path, nats_server, etcd_server)

    async def served(frontend: LoneProcess) -> float:
        return await asyncio.to_thread(frontend.metric, "kvmesh_request_seconds_count")

    async def body() -> None:
        leaver = mesh.start_frontend("leaver", 30.0, beside="leaver")
        other = mesh.start_frontend("other", beside="leaver")
        worker = mesh.start_worker("worker", "worker")
        for process in (mesh.start("router", "router"), leaver, other, worker):
            await wait_ready(process)
        expected = await mesh.ask_all("other")

        async def both_served() -> bool:
            assert await mesh.ask_all("other") == expected
            return min(await served(leaver), await served(other)) > 0

        await until("both have served", both_served, LIMIT_S)
        running = asyncio.ensure_future(mesh.ask_all("other"))
        await wait_metric(worker, "kvmesh_sequences_running", NUM_REQUESTS)
        leaver.process.terminate()
        assert await running == expected  # wherever they were
        assert await asyncio.to_thread(leaver.process.wait, LIMIT_S) == 0, leaver.log
        assert await mesh.ask_all("other") == expected

    try:
        asyncio.run(body())
    finally:
        mesh.close()
