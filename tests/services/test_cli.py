"""The console command as people meet it: its words, its lines for errors, its exit codes."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from services.servers import reserve_port


def _run(*words: str, environ: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "200"} | (environ or {}),
    )


def test_it_says_its_version() -> None:
    done = _run("--version")
    assert (done.returncode, done.stdout) == (0, f"kvmesh {version('kvmesh')}\n")


@pytest.mark.parametrize("kind", ["frontend", "router", "worker", "planner", "simulate", "up", "status"])
def test_every_setting_of_a_command_is_a_flag(kind: str) -> None:
    done = _run(kind, "--help")
    flags = {
        "frontend": "--bus-url",
        "router": "--queue-limit",
        "worker": "--role",
        "planner": "--dry-run",
        "up": "--decode",
        "simulate": "--workers",
    }
    assert done.returncode == 0
    assert flags.get(kind, "--once") in done.stdout
    assert "--config" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("fly",),
        ("up", "--wings", "2"),
        ("up", "--port", "many"),
        ("up", "--port", "0"),
        ("router", "--policy", "best"),
        ("worker", "--threads", "0"),
        ("status", "--nats", "nats://127.0.0.1:1"),
        ("pull", "no-such-model"),
    ],
)
def test_wrong_words_are_told_without_a_traceback_and_end_with_code_2(words: tuple[str, ...]) -> None:
    done = _run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_setting_is_one_line_that_names_its_source() -> None:
    done = _run("router", environ={"KVMESH_ROUTER_QUEUE_LIMIT": "-1"})
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("kvmesh: router.queue_limit: '-1' in KVMESH_ROUTER_QUEUE_LIMIT")


def test_a_failure_is_one_line_and_ends_with_code_1() -> None:
    nats = f"nats://127.0.0.1:{reserve_port()}"
    done = _run("status", "--nats", nats, "--etcd", "127.0.0.1:1", "--connect-limit-s", "0.2")
    assert done.returncode == 1
    assert done.stderr == f"kvmesh: {nats.removeprefix('nats://')} is out of reach\n"


def test_settings_prints_a_file_that_every_command_takes(tmp_path: Path) -> None:
    printed = _run("settings").stdout
    assert set(tomllib.loads(printed)) >= {"mesh", "bus", "directory", "frontend", "router", "worker", "up"}
    (tmp_path / "kvmesh.toml").write_text(printed)
    state = tmp_path / "none"
    done = _run("status", "--config", str(tmp_path / "kvmesh.toml"), "--state", str(state))
    assert done.stderr.startswith(f"kvmesh: state: no mesh runs in {state}")


def test_a_folder_is_pulled_by_saying_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 8, "max_position_embeddings": 16}')
    (tmp_path / "tokenizer.json").write_text("{}")
    done = _run("pull", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path.resolve()}\n")
