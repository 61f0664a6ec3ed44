"""The life of a process: how it ends on one signal, on two, on none, and on an error."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_HEAD = """
import asyncio, sys
from proto.errors import Disconnected, InvalidSetting
from services.process import run_process
from services.tasks import open_tasks

async def drains(shutdown):
    print("up", flush=True)
    await shutdown.wait()
    print("drained", flush=True)

async def hangs(shutdown):
    print("up", flush=True)
    await shutdown.wait()
    print("draining", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("closed", flush=True)

async def refuses(shutdown):
    raise InvalidSetting(setting="bus.url", reason="no such thing")

async def fails_in_a_task(shutdown):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lose())

async def lose():
    raise Disconnected(peer="etcd")

async def has_a_bug(shutdown):
    raise ZeroDivisionError
"""


@contextmanager
def _process(main: str, drain_limit_s: float | None = 5) -> Iterator[subprocess.Popen[str]]:
    script = f"{_HEAD}\nsys.exit(run_process({main}, drain_limit_s={drain_limit_s}))"
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_process_drain_and_end_cleanly(signum: signal.Signals) -> None:
    with _process("drains") as child:
        assert _line(child) == "up"
        child.send_signal(signum)
        assert child.communicate(timeout=10) == ("drained\n", "")
        assert child.returncode == 0


def test_a_second_signal_ends_it_at_once_and_still_closes() -> None:
    with _process("hangs") as child:
        assert _line(child) == "up"
        child.send_signal(signal.SIGTERM)
        assert _line(child) == "draining"
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=3)
        assert output == "closed\n"
        assert child.returncode == 130


def test_a_drain_without_end_is_cut_short_after_its_limit() -> None:
    with _process("hangs", drain_limit_s=-4.9) as child:  # the margin takes off all but a tenth of a second
        assert _line(child) == "up"
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=3)
        assert output == "draining\nclosed\n"
        assert child.returncode == 130


def test_what_has_nothing_to_drain_ends_at_once() -> None:
    with _process("hangs", drain_limit_s=None) as child:
        assert _line(child) == "up"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=3)[0] == ""
        assert child.returncode == 130


@pytest.mark.parametrize(
    ("main", "code", "said"),
    [
        ("refuses", 2, "kvmesh: bus.url: no such thing\n"),
        ("fails_in_a_task", 1, "kvmesh: etcd is out of reach\n"),
    ],
)
def test_an_error_of_ours_is_one_line(main: str, code: int, said: str) -> None:
    with _process(main) as child:
        assert child.communicate(timeout=10) == ("", said)
        assert child.returncode == code


def test_a_bug_shows_where_it_is() -> None:
    with _process("has_a_bug") as child:
        _, said = child.communicate(timeout=10)
        assert "Traceback" in said
        assert "has_a_bug" in said
        assert child.returncode == 1
