"""A mesh under test: `kvmesh up` in a folder of its own, and what tests look at."""

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

from services.launcher.state import MeshFile, RunningProcess, read_mesh
from services.servers import reserve_port

START_S = 90.0
LOOK_S = 0.05


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

    def metric(self, child: str, name: str, **labels: str) -> float:
        """The value of one sample of a child, summed over the labels not named; 0 when it has none."""
        text = httpx.get(f"{self.child(child).admin_url}/metrics", trust_env=False).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

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
