"""The mesh of the demonstration: servers, router, simulated workers, frontend and planner as real processes.

Their logs and `mesh.json` lie in its state folder, so `kvmesh status --state` sees it too.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from services.demo.swing import CROWD, LIMITS, NUM_WORKERS, SIMULATED
from services.launcher.child import ApplicationChild, Child, ChildSpec, ServerChild, as_running
from services.launcher.narrator import Narrator
from services.launcher.state import MeshFile, RunningProcess, remove_mesh, write_mesh
from services.launcher.supervisor import Supervisor
from services.mesh_settings import MeshSettings
from services.servers import START_LIMIT_S, Server, plan_etcd, plan_nats, reserve_port
from services.tasks import open_tasks

READY_LIMIT_S = 120.0
CROWD_NAME = "sim"
DRAIN_LIMIT_S = 0.5


class StagePlan(msgspec.Struct, frozen=True):
    """`model` gives the tokenizer; `speed`: how many times as fast as stated all runs."""

    state_dir: Path
    model: str
    speed: float


class Stage:
    """A mesh, once it is open. See `open_stage`."""

    def __init__(self, plan: StagePlan, narrator: Narrator) -> None:
        self._plan = plan
        self._narrator = narrator
        self._servers = (plan_nats(plan.state_dir / "nats"), plan_etcd(plan.state_dir / "etcd"))
        self._port = reserve_port()
        self._running: dict[str, RunningProcess] = {}

    @property
    def file(self) -> MeshFile:
        """Where everything listens."""
        nats, etcd = self._servers
        return MeshFile(
            launcher_pid=os.getpid(),
            namespace=MeshSettings().ns,
            nats_url=nats.url,
            etcd_endpoint=etcd.url,
            url=f"http://127.0.0.1:{self._port}",
            processes=list(self._running.values()),
        )

    async def start(self, supervisor: Supervisor) -> None:
        """
        Raises:
            KvmeshError: a process does not start.
        """
        for plan in self._servers:
            shutil.rmtree(plan.data_dir, ignore_errors=True)
        await self._start_all(
            supervisor, [ServerChild(Server(plan)) for plan in self._servers], START_LIMIT_S
        )
        children = [ApplicationChild(spec, os.environ) for spec in self._specs()]
        await self._start_all(supervisor, children, READY_LIMIT_S)

    async def _start_all(self, supervisor: Supervisor, children: Sequence[Child], limit_s: float) -> None:
        with self._narrator.step("starting " + ", ".join(child.name for child in children)):
            for child in children:
                supervisor.start(child)
            async with open_tasks() as tasks:
                for child in children:
                    tasks.create_task(supervisor.wait_ready(child, limit_s), name=f"wait {child.name}")

    def _specs(self) -> list[ChildSpec]:
        """As the end of each takes its turn: simulated workers as workers do."""
        speed = self._plan.speed
        simulate = {"name": CROWD_NAME, "model": self._plan.model, **CROWD}
        workers = {"workers": NUM_WORKERS // 2, "prefill_workers": NUM_WORKERS // 2}
        simulated = {f"simulated_{name}": value for name, value in SIMULATED.items()}
        limits = {"ttft_s": LIMITS.ttft_s, "itl_s": LIMITS.itl_s}
        return [
            self._spec("router", "router", {}),
            self._spec(
                "worker", "simulate", {**simulate, **workers, **simulated, "simulated_speed_up": speed}
            ),
            self._spec("frontend", "frontend", {"port": self._port}),
            self._spec("planner", "planner", {**limits, "speed_up": speed}),
        ]

    def _spec(self, kind: str, command: str, settings: Mapping[str, object]) -> ChildSpec:
        nats, etcd = self._servers
        port = reserve_port()
        told = {
            "bus_url": nats.url,
            "directory_endpoints": etcd.url,
            "admin_port": port,
            "mesh_drain_limit_s": DRAIN_LIMIT_S,
            "mesh_beat_s": MeshSettings().beat_s / max(1.0, self._plan.speed),
            **settings,
        }
        flags = [word for name, value in told.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        argv = (sys.executable, "-P", "-m", "services.cli", command, *flags)
        return ChildSpec(command, kind, argv, self._plan.state_dir / "logs" / f"{command}.log", port)

    def say(self, line: str) -> None:
        self._narrator.say(line)

    def spawned(self, child: Child) -> None:
        self._running[child.name] = as_running(child)
        write_mesh(self._plan.state_dir, self.file)

    def reaped(self, child: Child, pid: int) -> None:
        self._running.pop(child.name, None)


@asynccontextmanager
async def open_stage(plan: StagePlan, narrator: Narrator) -> AsyncIterator[MeshFile]:
    """All is ready for the time of the body, and where it listens; at its end every process is ended.

    Raises:
        KvmeshError: a process does not start.

    Cancel: every process is ended likewise.
    """
    stage = Stage(plan, narrator)
    async with open_tasks() as tasks:
        supervisor = Supervisor(tasks, stage)
        bounding = tasks.create_task(supervisor.bound_logs(), name="bound logs")
        try:
            await stage.start(supervisor)
            yield stage.file
        finally:
            await supervisor.end()
            await asyncio.wait((bounding,))
            remove_mesh(plan.state_dir)
