"""A mesh whose workers are simulated: a router, a frontend, and crowds of workers that come and go."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

from proto.names import new_id
from services.mesh_settings import MeshSettings
from services.replay.http_call import parse_url
from services.replay.player import Pace
from services.replay.report import Limits, Report
from services.replay.session import Target, Terms, play_all
from services.replay.trace import TraceRequest
from services.servers import reserve_port
from tests.mesh.apart import STOP_S, LoneProcess, start_alone, wait_until
from tests.tiny_model import write_tiny_llama

READY_S = 60.0


@dataclass
class SimulatedMesh:
    """For the time of its body. `routing` and `serving` are settings of the router and of the frontend;
    `processes` are by name.

    Models are folders with a tokenizer alone: what sends token ids and counts tokens needs no more.
    """

    folder: Path
    nats: str
    etcd: str
    routing: Mapping[str, Any] = field(default_factory=dict)
    serving: Mapping[str, Any] = field(default_factory=dict)
    beat_s: float = MeshSettings().beat_s
    processes: dict[str, LoneProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mesh = MeshSettings(ns=f"test-{new_id()}", beat_s=self.beat_s, drain_limit_s=1.0)
        self.port = reserve_port()
        self.models: set[str] = set()
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "SimulatedMesh":
        try:
            self._start("router", "router", **self.routing)
            self._start("frontend", "frontend", port=self.port, **self.serving)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start_crowd(self, name: str, model: str, **simulate: Any) -> None:
        """Simulated workers `name`-0 and so on; whoever starts several waits for all of them together."""
        folder = self.folder / model
        if model not in self.models:
            write_text(folder)
            self.models.add(model)
        self._start("simulate", name, model=str(folder), name=name, **simulate)

    def start_planner(self, name: str, **settings: Any) -> None:
        """It orders nothing before it has heard enough; whoever starts one looks at what it does."""
        self._start("planner", name, **settings)

    def end_crowd(self, name: str) -> None:
        """Its workers leave in good order; or a planner does.

        Raises:
            AssertionError: they do not, or too slowly.
        """
        crowd = self.processes.pop(name)
        crowd.process.terminate()
        assert crowd.process.wait(STOP_S) == 0, crowd.log

    def kill_crowd(self, name: str) -> None:
        """On return its process is gone; its workers are lost once their beats are missed."""
        self.processes.pop(name).process.kill()

    @property
    def num_workers(self) -> int:
        """Ready ones, as the router has it."""
        return int(self.processes["router"].metric("kvmesh_route_workers"))

    def wait_workers(self, num_workers: int) -> None:
        """Until the router has so many workers, and the frontend serves every model."""

        def are_there() -> bool:
            if not all(process.is_ready for process in self.processes.values()):
                return False
            listed = httpx.get(f"{self.url}/v1/models", trust_env=False).json()["data"]
            return self.num_workers == num_workers and {one["id"] for one in listed} == self.models

        wait_until(f"{num_workers} workers serve", are_there, READY_S)

    def cpu_s(self, name: str) -> float:
        """Seconds of CPU that a process has taken."""
        times = psutil.Process(self.processes[name].process.pid).cpu_times()
        return float(times.user + times.system)

    async def play(
        self, model: str, trace: Sequence[TraceRequest], limits: Limits, speed: float, seed: int
    ) -> Report:
        """One trace, once. Equal seeds have equal prompts."""
        terms = Terms(pace=Pace(speed=speed), limits=limits, seed=seed)
        target = Target(model, parse_url(self.url), model)
        (played,) = await play_all(trace, [target], terms, lambda _: None)
        return played.report

    def _start(self, kind: str, process: str, **settings: Any) -> None:
        lone = start_alone(kind, process, self.folder, self.nats, self.etcd, mesh=self.mesh, **settings)
        self.processes[process] = lone
        self._stack.callback(lone.process.close)


def write_text(folder: Path) -> None:
    """A folder of a model with its tokenizer alone."""
    for file in write_tiny_llama(folder).iterdir():
        if not file.name.startswith("tokenizer"):
            file.unlink()
