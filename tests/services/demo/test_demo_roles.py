"""`kvmesh demo-roles` with all its processes: it shows roles, ends by itself or at Ctrl-C, leaves nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.mesh.simulated_mesh import write_text

LIMIT_S = 110.0


def _start(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    """Slower than real, which asks little of a busy machine."""
    write_text(folder / "text")
    command = [sys.executable, "-m", "services.cli", "demo-roles", "--model", str(folder / "text")]
    return subprocess.Popen(
        [*command, "--state", str(folder / "state"), "--speed", "0.5", "--phase-s", "1", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _left(folder: Path) -> list[list[str]]:
    """Processes that were started with this folder, and run yet."""
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if any(str(folder) in word for word in command)]


@pytest.mark.slow
def test_it_shows_roles_for_a_while_and_leaves_nothing(tmp_path: Path) -> None:
    with _start(tmp_path, "--seconds", "2") as process:
        said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    lines = said.splitlines()
    assert any(line.startswith("load prompts; prefill 4, decode 4; ") for line in lines), said
    assert lines[-1] == "all processes have ended"
    assert not (tmp_path / "state" / "mesh.json").exists()
    assert _left(tmp_path) == []


@pytest.mark.slow
def test_ctrl_c_ends_it_in_good_order(tmp_path: Path) -> None:
    with _start(tmp_path) as process:
        assert process.stdout is not None
        seen = next(line for line in process.stdout if line.startswith("load "))
        assert "no move yet" in seen
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    assert said.splitlines()[-1] == "all processes have ended"
    assert _left(tmp_path) == []
