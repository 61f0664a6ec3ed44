"""A mesh under test: `kvmesh up` in a folder of its own, and what tests look at."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from services.launcher.state import MeshFile, RunningProcess, read_mesh
from services.servers import reserve_port

START_S = 90.0
LOOK_S = 0.05
SCRAPE_S = 5.0
EMPTY_AT_REST = {
    "frontend": ("kvmesh_requests_running", "kvmesh_streams_live"),
    "router": (
        "kvmesh_route_requests_running",
        "kvmesh_route_queue_length",
        "kvmesh_route_promised_sequences",
        "kvmesh_route_promised_tokens",
    ),
    "worker": (
        "kvmesh_sequences_running",
        "kvmesh_prefill_queue_length",
        "kvmesh_decode_queue_length",
        "kvmesh_blocks_used",
        "kvmesh_blocks_granted",
        "kvmesh_blocks_quarantined",
        "kvmesh_attempts_served",
        "kvmesh_jobs_in_hand",
        "kvmesh_grants",
        "kvmesh_grants_held",
        "kvmesh_pins",
        "kvmesh_streams_kept",
    ),
}
"""Gauges that read 0 when a mesh has no work, by kind of process."""


class RunningMesh:
    """One launcher and its children. `wait_until` is the only way to wait: on a condition, with a bound."""

    def __init__(self, process: "subprocess.Popen[bytes]", state: Path, port: int) -> None:
        self.process = process
        self.state = state
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    @property
    def file(self) -> MeshFile:
        return read_mesh(self.state)

    def child(self, name: str) -> RunningProcess:
        return next(child for child in self.file.processes if child.name == name)

    @property
    def pids(self) -> dict[str, int]:
        return {child.name: child.pid for child in self.file.processes}

    def metric(self, child: str, name: str, **labels: str) -> float:
        """The value of one sample of a child, summed over the labels not named; 0 when it has none."""
        return sum(
            sample.value
            for sample in self._samples(self.child(child))
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def worker_names(self) -> dict[str, str]:
        """What the directory calls each worker, and what its launcher does."""
        workers = [child for child in self.file.processes if child.kind == "worker"]
        return {self._process_name(child): child.name for child in workers}

    def _process_name(self, child: RunningProcess) -> str:
        infos = [one for one in self._samples(child) if one.name == "kvmesh_process_info"]
        (name,) = (info.labels["process"] for info in infos)
        return name

    def _samples(self, child: RunningProcess) -> list[Sample]:
        text = self.http.get(f"{child.admin_url}/metrics", timeout=SCRAPE_S).text
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def unrest(self) -> dict[str, float]:
        """What is not as in a mesh without work: gauges that are not 0 (nan: not there), missing blocks."""
        found: dict[str, float] = {}
        for child in self.file.processes:
            gauges = EMPTY_AT_REST.get(child.kind, ())
            values = self._try_values(child) if gauges else {}
            found |= {f"{child.name}: {name}": values.get(name, math.nan) for name in gauges}
            missing = values.get("kvmesh_blocks", 0) - values.get("kvmesh_blocks_free", 0)
            found[f"{child.name}: missing blocks"] = missing
        return {name: value for name, value in found.items() if value}

    def _try_values(self, child: RunningProcess) -> dict[str, float]:
        """Nothing while `child` is being started again."""
        try:
            return {sample.name: sample.value for sample in self._samples(child)}
        except httpx.HTTPError:
            return {}

    def wait_at_rest(self, limit_s: float = 15.0) -> None:
        """Every pool, gauge and table is where it began. A promise of a router may take 10 s to lapse."""
        try:
            self.wait_until("the mesh is at rest", lambda: not self.unrest(), limit_s)
        except AssertionError as error:
            raise AssertionError(f"not at rest: {self.unrest()}") from error

    def wait_until(self, what: str, is_so: Callable[[], bool], limit_s: float = 20.0) -> None:
        """
        Raises:
            AssertionError: not so within `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
            time.sleep(LOOK_S)

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.output()
            try:
                return self.http.get("/v1/models").status_code == 200 and bool(self.models())
            except httpx.HTTPError:
                return False

        self.wait_until("the mesh serves a model", is_ready, START_S)

    def models(self) -> list[str]:
        return [model["id"] for model in self.http.get("/v1/models").json()["data"]]

    def output(self) -> str:
        return (self.state / "up.log").read_text()

    def log(self, child: str) -> str:
        return (self.state / "logs" / f"{child}.log").read_text()

    def end(self, limit_s: float = 10.0) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit_s)


@contextmanager
def run_mesh(
    state: Path, model: str, *flags: str, environ: dict[str, str] | None = None
) -> Iterator[RunningMesh]:
    """A mesh that serves `model`, ready; ended with its body. `flags` are those of `kvmesh up`."""
    state.mkdir(parents=True, exist_ok=True)
    port = reserve_port()
    command = [sys.executable, "-m", "services.cli", "up", "--model", model, "--port", str(port)]
    with (state / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--state", str(state), *flags],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (environ or {}),
        )
    mesh = RunningMesh(process, state, port)
    try:
        mesh.wait_ready()
        yield mesh
    finally:
        mesh.http.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
