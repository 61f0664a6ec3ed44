"""One launch: the servers, then the applications, each kept alive until the launcher is told to end.

```
 checks ── model ── nats-server, etcd ── router, workers, frontend ── all ready ── … ── end
 (nothing has started yet)          └──────────── children, kept by the supervisor ───────┘
```
"""

import asyncio
import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from proto.errors import KvmeshError
from services.launcher.child import ApplicationChild, Child, ServerChild, as_running
from services.launcher.child_log import log_tail
from services.launcher.narrator import Narrator
from services.launcher.plan import Surroundings, WorkerPlaces, num_children, plan_children
from services.launcher.state import MeshFile, RunningProcess, remove_mesh, write_mesh
from services.launcher.supervisor import Supervisor
from services.launcher.up_settings import UpSettings
from services.servers import START_LIMIT_S, Server, plan_etcd, plan_nats, reserve_port
from services.tasks import open_tasks

_TAIL_LINES = 12
log = logging.getLogger(__name__)


class Launch:
    """A mesh being up: `run` is its life. What it hears of the children it tells people and `mesh.json`.

    `model` is the name by which clients call what is served.
    """

    def __init__(
        self, settings: UpSettings, places: WorkerPlaces, model: str, config: Path | None, narrator: Narrator
    ) -> None:
        self._settings = settings
        self._places = places
        self._model = model
        self._config = config
        self._narrator = narrator
        self._state_dir = Path(settings.state)
        self._nats_url = settings.nats
        self._etcd_endpoint = settings.etcd
        self._running: dict[str, RunningProcess] = {}

    async def run(self, shutdown: asyncio.Event) -> None:
        """Starts everything, waits for `shutdown`, ends everything.

        Cancel: every child is killed.
        """
        async with open_tasks() as tasks:
            supervisor = Supervisor(tasks, self)
            tasks.create_task(supervisor.bound_logs(), name="bound logs")
            try:
                await self._start_unless(shutdown, supervisor)
                await shutdown.wait()
                self.say("ending")
            finally:
                await supervisor.end()
                remove_mesh(self._state_dir)
        self.say("all processes have ended")

    async def _start_unless(self, shutdown: asyncio.Event, supervisor: Supervisor) -> None:
        """Returns when everything is ready, or when `shutdown` comes first."""
        async with open_tasks() as tasks:
            starting = tasks.create_task(self._start(supervisor), name="start")
            told = tasks.create_task(shutdown.wait(), name="shutdown")
            await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()
            told.cancel()

    async def _start(self, supervisor: Supervisor) -> None:
        began = time.monotonic()
        servers = self._make_servers()
        if servers:
            with self._narrator.step("starting " + " and ".join(server.name for server in servers)):
                await self._start_all(supervisor, servers, START_LIMIT_S)
        applications = self._make_applications()
        names = ", ".join(child.name for child in applications)
        with self._narrator.step(f"starting {names}"):
            await self._start_all(supervisor, applications, self._settings.ready_limit_s)
        self._tell_ready(time.monotonic() - began)

    def _make_servers(self) -> list[ServerChild]:
        """Their data is that of this launch alone: processes say anew who they are and what they hold."""
        plans = []
        if not self._nats_url:
            plans.append(plan_nats(self._state_dir / "nats", port=self._settings.nats_port or None))
            self._nats_url = plans[-1].url
        if not self._etcd_endpoint:
            plans.append(plan_etcd(self._state_dir / "etcd", port=self._settings.etcd_port or None))
            self._etcd_endpoint = plans[-1].url
        for plan in plans:
            shutil.rmtree(plan.data_dir, ignore_errors=True)
        return [ServerChild(Server(plan)) for plan in plans]

    def _make_applications(self) -> list[ApplicationChild]:
        num_ports = num_children(self._settings, self._places)
        around = Surroundings(
            state_dir=self._state_dir,
            nats_url=self._nats_url,
            etcd_endpoint=self._etcd_endpoint,
            admin_ports=tuple(reserve_port() for _ in range(num_ports)),
            config=self._config,
        )
        return [
            ApplicationChild(spec, os.environ) for spec in plan_children(self._settings, self._places, around)
        ]

    async def _start_all(self, supervisor: Supervisor, children: Sequence[Child], limit_s: float) -> None:
        for child in children:
            supervisor.start(child)
        async with open_tasks() as tasks:
            for child in children:
                tasks.create_task(self._wait_ready(supervisor, child, limit_s), name=f"wait {child.name}")

    async def _wait_ready(self, supervisor: Supervisor, child: Child, limit_s: float) -> None:
        began = time.monotonic()
        try:
            await supervisor.wait_ready(child, limit_s)
        except KvmeshError:
            self.say(f"{child.name} failed; its log ends:")
            for line in log_tail(child.log, _TAIL_LINES):
                self.say(f"  | {line}")
            raise
        self.say(f"{child.name} is ready, after {time.monotonic() - began:.1f} s")

    def _tell_ready(self, took_s: float) -> None:
        host = "127.0.0.1" if self._settings.host == "0.0.0.0" else self._settings.host
        url = f"http://{host}:{self._settings.port}"
        message = {"role": "user", "content": "What is the capital of France?"}
        body = json.dumps({"model": self._model, "messages": [message]})
        self.say(f"ready after {took_s:.1f} s: {self._model} at {url}/v1")
        self.say(f"try: curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
        self.say(f"see: kvmesh status --state {self._settings.state}; Ctrl-C ends the mesh")

    def say(self, line: str) -> None:
        log.info(line)
        self._narrator.say(line)

    def spawned(self, child: Child) -> None:
        self._running[child.name] = as_running(child)
        log.info("spawned %s", child.name, extra={"pid": child.process.pid})
        write_mesh(self._state_dir, self._mesh_file())

    def reaped(self, child: Child, pid: int) -> None:
        log.info("reaped %s", child.name, extra={"pid": pid, "code": child.process.returncode})

    def _mesh_file(self) -> MeshFile:
        return MeshFile(
            launcher_pid=os.getpid(),
            namespace=self._settings.mesh.ns,
            nats_url=self._nats_url,
            etcd_endpoint=self._etcd_endpoint,
            url=f"http://{self._settings.host}:{self._settings.port}",
            processes=list(self._running.values()),
        )
