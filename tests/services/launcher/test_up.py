"""`kvmesh up` as its own process: refused before it starts, failing while it starts, ended while it runs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from services.launcher.state import lock_state, read_mesh
from services.servers import reserve_port
from tests.tiny_model import write_tiny_llama

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


class Up:
    """A launcher with a simulated engine, and what it prints."""

    def __init__(self, process: "subprocess.Popen[str]", state: Path) -> None:
        self.process = process
        self.state = state
        self.lines: list[str] = []

    def read_until(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if words in line:
                return
        raise AssertionError(f"it ended without {words!r}: {''.join(self.lines)}")

    def read_to_end(self) -> str:
        assert self.process.stdout is not None
        self.lines += self.process.stdout
        self.process.wait(LIMIT_S)
        return "".join(self.lines)

    def children(self) -> list[psutil.Process]:
        """What it has started, and what those have."""
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def _up(model: Path, state: Path, *flags: str, environ: dict[str, str] | None = None) -> Iterator[Up]:
    command = [sys.executable, "-m", "services.cli", "up", "--engine", "simulated", "--model", str(model)]
    process = subprocess.Popen(
        [*command, "--state", str(state), "--port", str(reserve_port()), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (environ or {}),
    )
    with process:
        try:
            yield Up(process, state)
        finally:
            process.kill()


def _all_gone(processes: list[psutil.Process], limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while not all(_has_ended(process) for process in processes):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.01)
    return True


def _has_ended(process: psutil.Process) -> bool:
    """Whether or not the system has reaped it already: an orphan is nobody's here."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_taken_port_is_refused_before_anything_starts(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _up(model, tmp_path, "--port", str(port)) as up:
            assert (
                up.read_to_end()
                == f"kvmesh: up.port: 127.0.0.1:{port} cannot be had: Address already in use\n"
            )
            assert up.process.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["launcher.lock"]


def test_a_folder_in_use_is_refused(model: Path, tmp_path: Path) -> None:
    with lock_state(tmp_path), _up(model, tmp_path) as up:
        assert f"belongs to a mesh that runs (process {os.getpid()})" in up.read_to_end()
        assert up.process.returncode == 2


def test_a_child_that_cannot_start_ends_the_launch_with_the_end_of_its_log(
    model: Path, tmp_path: Path
) -> None:
    with _up(model, tmp_path, environ={"KVMESH_ROUTER_QUEUE_LIMIT": "many"}) as up:
        output = up.read_to_end()
    assert up.process.returncode == 2
    assert "router-0 failed; its log ends:" in output
    assert "  | kvmesh: router.queue_limit: 'many' in KVMESH_ROUTER_QUEUE_LIMIT" in output
    assert output.splitlines()[-1].startswith("kvmesh: router-0: it refused to start")
    assert "Traceback" not in output


def test_ctrl_c_while_starting_ends_everything(model: Path, tmp_path: Path) -> None:
    with _up(model, tmp_path) as up:
        up.read_until("starting router-0")
        children = up.children()
        assert children
        began = time.monotonic()
        up.process.send_signal(signal.SIGINT)
        assert "all processes have ended" in up.read_to_end()
        assert time.monotonic() - began < 5.0
        assert up.process.returncode == 0
        assert _all_gone(children, 0.5)


def test_sigterm_ends_a_running_mesh_within_five_seconds_and_leaves_nothing(
    model: Path, tmp_path: Path
) -> None:
    with _up(model, tmp_path, "--prefill", "0") as up:
        up.read_until("try: curl")
        children = up.children()
        assert {process.name for process in read_mesh(tmp_path).processes} == {
            "nats-server",
            "etcd",
            "router-0",
            "decode-0",
            "frontend-0",
        }
        started = psutil.Process(up.process.pid).children()
        assert {child.pid for child in started} == {process.pid for process in read_mesh(tmp_path).processes}
        began = time.monotonic()
        up.process.send_signal(signal.SIGTERM)
        assert "all processes have ended" in up.read_to_end()
        assert time.monotonic() - began < 5.0
        assert up.process.returncode == 0
        assert _all_gone(children, 0.5)
    assert not (tmp_path / "mesh.json").exists()


def test_a_second_ctrl_c_ends_everything_at_once(model: Path, tmp_path: Path) -> None:
    with _up(model, tmp_path, "--prefill", "0") as up:
        up.read_until("try: curl")
        children = up.children()
        frontend = next(process for process in read_mesh(tmp_path).processes if process.kind == "frontend")
        os.kill(frontend.pid, signal.SIGSTOP)
        up.process.send_signal(signal.SIGINT)
        up.read_until("ending")
        began = time.monotonic()
        up.process.send_signal(signal.SIGINT)
        up.read_to_end()
        assert time.monotonic() - began < 2.5
        assert up.process.returncode == 130
        assert _all_gone(children, 0.5)


def test_a_killed_launcher_leaves_no_process(model: Path, tmp_path: Path) -> None:
    with _up(model, tmp_path) as up:
        up.read_until("starting router-0")
        children = up.children()
        assert len(children) >= 2
        up.process.kill()
        assert _all_gone(children, 5.0)
