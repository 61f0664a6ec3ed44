"""The planner on a real NATS and etcd, with scripted beats: it orders, takes back, thinks only, waits, and is
followed by the next one."""

import asyncio
import logging
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from proto import keys
from proto.cards import Presence
from proto.codec import decode
from proto.roles import Role, WorkerState
from services.bus import BusSettings
from services.directory import Directory, DirectorySettings, open_directory
from services.mesh_settings import MeshSettings
from services.planner.election import line_up
from services.planner.service import serve_planner
from services.planner.settings import PlannerSettings
from services.servers import Server
from services.tasks import open_tasks
from tests.services.planner.scripted_mesh import MODEL, Rates, ScriptedMesh, open_scripted_mesh
from tests.services.waiting import wait_for

LIMIT_S = 30.0
SPEED_UP = 20.0
PROMPTS = Rates(requests=2000.0, prompt_tokens=2400.0, output_tokens=200.0)
"""More than two prefill workers can do, and little to decode."""
ANSWERS = Rates(requests=2000.0, prompt_tokens=100.0, output_tokens=4000.0)
"""More than two decode workers can do within the ITL limit, and little to prefill."""


class PlannedMesh:
    """A scripted mesh, and the planner `p-0`."""

    def __init__(self, mesh: ScriptedMesh, directory: Directory, ns: str) -> None:
        self.mesh = mesh
        self.directory = directory
        self.ns = ns

    async def line(self) -> list[str]:
        return line_up(await self.directory.list(keys.planners(self.ns)))

    async def num_orders(self) -> int:
        return len(await self.directory.list(keys.orders(self.ns)))

    async def read_metric(self, name: str, **labels: str) -> float:
        """Of the planner that leads; 0 where it has none such."""
        line = await self.line()
        entry = await self.directory.get(keys.planner(self.ns, line[0])) if line else None
        if entry is None:
            return 0.0
        url = decode(entry.value, Presence).url
        text = await asyncio.to_thread(_fetch, f"{url}/metrics")
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for found in re.finditer(rf"^kvmesh_{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE):
            if wanted <= set(found[1].split(",")):
                return float(found[2])
        return 0.0


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Asks again and again, within a bound."""
    async with asyncio.timeout(LIMIT_S):
        while not await is_so():  # noqa: ASYNC110 (what is asked comes from other processes)
            await asyncio.sleep(0.05)


def _settings(nats: Server, etcd: Server, ns: str, *, dry_run: bool = False) -> PlannerSettings:
    return PlannerSettings(
        mesh=MeshSettings(ns=ns, beat_s=0.5, lost_after_s=60.0),
        bus=BusSettings(url=nats.url),
        directory=DirectorySettings(endpoints=[etcd.url], lease_ttl_s=2),
        ttft_s=20.0,
        itl_s=0.6,
        min_stay_s=0.0,
        cool_down_s=0.0,
        speed_up=SPEED_UP,
        dry_run=dry_run,
    )


@asynccontextmanager
async def _planned_mesh(
    nats: Server, etcd: Server, ns: str, *, dry_run: bool = False
) -> AsyncIterator[PlannedMesh]:
    """Two prefill and two decode workers, and nothing to do."""
    settings, shutdown = _settings(nats, etcd, ns, dry_run=dry_run), asyncio.Event()
    async with (
        open_scripted_mesh(nats, etcd, ns, prefill=2, decode_workers=2) as mesh,
        open_directory(settings.directory) as directory,
        open_tasks() as tasks,
    ):
        tasks.create_task(serve_planner(settings, "p-0", shutdown), name="planner")
        try:
            yield PlannedMesh(mesh, directory, ns)
        finally:
            shutdown.set()


def test_roles_follow_the_load_one_worker_at_a_time(
    nats_server: Server, etcd_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with _planned_mesh(nats_server, etcd_server, namespace) as planned:
            mesh = planned.mesh
            mesh.rates = PROMPTS
            await wait_for(lambda: mesh.num(Role.PREFILL) == 3, LIMIT_S)
            mesh.rates = ANSWERS
            await wait_for(lambda: mesh.num(Role.DECODE) == 3, LIMIT_S)
            assert {order.placed_by for order in mesh.orders} == {"planner"}
            assert mesh.orders[0].role is Role.PREFILL
            labels = {"model": MODEL, "outcome": "done"}
            for role in Role:

                async def has_moved(role: Role = role) -> bool:
                    return await planned.read_metric("planner_moves_total", to=role, **labels) >= 1

                await _until(has_moved)
            assert await planned.read_metric("planner_wanted_workers", model=MODEL, role="decode") > 2

    asyncio.run(body())


def test_a_move_whose_reason_is_gone_is_taken_back(
    nats_server: Server, etcd_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with _planned_mesh(nats_server, etcd_server, namespace) as planned:
            mesh = planned.mesh
            mesh.obeys, mesh.rates = False, PROMPTS
            await wait_for(lambda: mesh.states() == {WorkerState.READY, WorkerState.DRAINING}, LIMIT_S)
            mesh.rates = Rates(requests=2000.0, prompt_tokens=400.0, output_tokens=200.0)
            await wait_for(lambda: mesh.states() == {WorkerState.READY}, LIMIT_S)
            assert await planned.num_orders() == 0

            async def is_counted() -> bool:
                return await planned.read_metric("planner_moves_total", outcome="taken_back") >= 1

            await _until(is_counted)
            assert (mesh.num(Role.PREFILL), mesh.num(Role.DECODE)) == (2, 2)

    asyncio.run(body())


def test_a_dry_run_says_what_it_would_do_and_orders_nothing(
    nats_server: Server, etcd_server: Server, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with _planned_mesh(nats_server, etcd_server, namespace, dry_run=True) as planned:

            def thoughts() -> list[logging.LogRecord]:
                return [each for each in caplog.records if each.getMessage().startswith("a dry run")]

            with caplog.at_level("INFO"):
                planned.mesh.rates = PROMPTS
                await wait_for(lambda: bool(thoughts()), LIMIT_S)
            fields = thoughts()[0].__dict__
            assert (fields["to"], fields["num_prefill"], fields["best_prefill"]) == ("prefill", 2, 3)
            assert fields["headroom_prefill_now"] < fields["headroom_prefill_after"]
            assert await planned.num_orders() == 0
            assert not await planned.directory.list(keys.planners(namespace))  # it keeps nobody from leading

    asyncio.run(body())


def test_nothing_moves_while_a_report_is_missing(
    nats_server: Server, etcd_server: Server, namespace: str
) -> None:
    async def body() -> None:
        async with _planned_mesh(nats_server, etcd_server, namespace) as planned:
            mesh = planned.mesh

            async def is_known() -> bool:
                return await planned.read_metric("planner_split", role="decode", which="present") == 2

            async def is_blind() -> bool:
                return await planned.read_metric("planner_blind") == 1

            async def is_short() -> bool:
                headroom = await planned.read_metric("planner_headroom_ratio", role="prefill")
                return 0.0 < headroom < 0.95

            await _until(is_known)
            mesh.silent = {"w-3"}
            await _until(is_blind)
            mesh.rates = PROMPTS
            await _until(is_short)
            assert await is_blind()
            assert await planned.num_orders() == 0
            mesh.silent = set()
            await wait_for(lambda: mesh.num(Role.PREFILL) == 3, LIMIT_S)

    asyncio.run(body())


def test_the_next_planner_goes_on_with_the_move_of_one_that_was_killed(
    nats_server: Server, etcd_server: Server, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def body() -> None:
        settings, shutdown = _settings(nats_server, etcd_server, namespace), asyncio.Event()
        async with (
            open_scripted_mesh(nats_server, etcd_server, namespace, prefill=2, decode_workers=2) as mesh,
            open_directory(settings.directory) as directory,
            open_tasks() as tasks,
        ):
            planned = PlannedMesh(mesh, directory, namespace)
            first = await _start_process(settings)
            try:
                await _until(lambda: _has_line(planned, 1))
                tasks.create_task(serve_planner(settings, "p-1", shutdown), name="planner")
                await _until(lambda: _has_line(planned, 2))
                assert (await planned.line())[1] == "p-1"
                mesh.obeys, mesh.rates = False, PROMPTS
                await wait_for(lambda: len(mesh.orders) == 1, LIMIT_S)
            finally:
                first.send_signal(signal.SIGKILL)
                await first.wait()
            followed = "a move of an earlier planner is followed"
            await wait_for(lambda: followed in [each.getMessage() for each in caplog.records], LIMIT_S)
            await mesh.fulfil(mesh.orders[0])

            async def is_done() -> bool:
                return await planned.read_metric("planner_moves_total", to="prefill", outcome="done") >= 1

            await _until(is_done)
            shutdown.set()

    asyncio.run(body())


async def _has_line(planned: PlannedMesh, length: int) -> bool:
    return len(await planned.line()) == length


async def _start_process(settings: PlannerSettings) -> asyncio.subprocess.Process:
    """`kvmesh planner` with the same settings."""
    flags = ["--mesh-ns", settings.mesh.ns, "--mesh-lost-after-s", str(settings.mesh.lost_after_s)]
    flags += ["--mesh-beat-s", str(settings.mesh.beat_s)]
    flags += ["--bus-url", settings.bus.url, "--directory-endpoints", settings.directory.endpoints[0]]
    flags += ["--directory-lease-ttl-s", str(settings.directory.lease_ttl_s)]
    for field in ("ttft_s", "itl_s", "min_stay_s", "cool_down_s", "speed_up"):
        flags += [f"--{field.replace('_', '-')}", str(getattr(settings, field))]
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "services.cli", "planner", *flags)
