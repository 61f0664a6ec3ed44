"""Supervision with real processes: kept alive, ended in order and in time, and none left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from proto.errors import DeadlineExceeded, InternalFault
from services.launcher.child import ApplicationChild, Child, ChildSpec
from services.launcher.supervisor import Supervisor
from services.servers import reserve_port
from services.tasks import open_tasks

TINY = Path(__file__).with_name("tiny_child.py")
LIMIT_S = 10.0


class Record:
    """A witness that writes down, and wakes whoever waits for something written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.spawns: list[tuple[str, int]] = []
        self.ends: list[tuple[str, int]] = []
        self._wake = asyncio.Event()

    def say(self, line: str) -> None:
        self.lines.append(line)
        self._wake.set()

    def spawned(self, child: Child) -> None:
        self.spawns.append((child.name, child.process.pid))
        self._wake.set()

    def reaped(self, child: Child, pid: int) -> None:
        self.ends.append((child.name, pid))
        self._wake.set()

    async def wait(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                self._wake.clear()
                await self._wake.wait()


def _child(
    folder: Path, name: str, *manners: str, kind: str = "worker", cores: tuple[int, ...] = ()
) -> ApplicationChild:
    port = reserve_port()
    argv = (sys.executable, "-I", "-S", str(TINY), str(port), *manners)
    return ApplicationChild(ChildSpec(name, kind, argv, folder / f"{name}.log", port, cores), os.environ)


@asynccontextmanager
async def _supervisor() -> AsyncIterator[tuple[Supervisor, Record]]:
    record = Record()
    async with open_tasks() as tasks:
        supervisor = Supervisor(tasks, record)
        try:
            yield supervisor, record
        finally:
            await supervisor.end()


async def _up(supervisor: Supervisor, *children: Child) -> None:
    for child in children:
        supervisor.start(child)
    for child in children:
        await supervisor.wait_ready(child, LIMIT_S)


def _is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_child_that_dies_is_started_again_and_said_so(tmp_path: Path) -> None:
    async def body() -> None:
        async with _supervisor() as (supervisor, record):
            child = _child(tmp_path, "decode-0")
            await _up(supervisor, child)
            first = child.process.pid
            os.kill(first, signal.SIGKILL)
            await record.wait(lambda: len(record.spawns) == 2)
            await supervisor.wait_ready(child, LIMIT_S)
            assert record.ends == [("decode-0", first)]
            assert child.process.pid != first
            assert "decode-0 was ended by signal 9; starting it again in 0." in record.lines[0]

    asyncio.run(body())


def test_a_child_that_dies_again_and_again_waits_longer_each_time(tmp_path: Path) -> None:
    async def body() -> None:
        async with _supervisor() as (supervisor, record):
            child = _child(tmp_path, "decode-0", "brief")
            began = time.monotonic()
            await _up(supervisor, child)
            for life in (2, 3):
                await record.wait(lambda life=life: len(record.spawns) == life)  # type: ignore[misc]
                await child.wait_ready(LIMIT_S)
            assert time.monotonic() - began > 0.25 + 0.5
            assert [name for name, _ in record.ends[:2]] == ["decode-0", "decode-0"]
            assert "ended with code 3" in record.lines[0]

    asyncio.run(body())


def test_a_child_that_ends_before_it_is_ready_fails_the_start_with_its_last_words(tmp_path: Path) -> None:
    async def body() -> None:
        async with _supervisor() as (supervisor, record):
            words = "import sys; sys.exit('no such tensor')"
            spec = ChildSpec("decode-0", "worker", (sys.executable, "-c", words), tmp_path / "d.log", 1)
            child = ApplicationChild(spec, os.environ)
            supervisor.start(child)
            with pytest.raises(InternalFault, match=r"decode-0 ended with code 1.*no such tensor.*d\.log"):
                await supervisor.wait_ready(child, LIMIT_S)
            await record.wait(lambda: bool(record.ends))
            assert len(record.spawns) == 1

    asyncio.run(body())


def test_a_child_that_is_never_ready_fails_the_start_at_its_bound(tmp_path: Path) -> None:
    async def body() -> None:
        async with _supervisor() as (supervisor, _):
            argv = (sys.executable, "-c", "import signal; signal.pause()")
            child = ApplicationChild(ChildSpec("decode-0", "worker", argv, tmp_path / "d.log", 1), os.environ)
            supervisor.start(child)
            with pytest.raises(DeadlineExceeded, match="the start of decode-0"):
                await supervisor.wait_ready(child, 0.3)

    asyncio.run(body())


def test_frontends_end_first_then_workers_then_routers(tmp_path: Path) -> None:
    async def body() -> None:
        async with _supervisor() as (supervisor, record):
            kinds = ("router", "worker", "frontend")
            await _up(supervisor, *(_child(tmp_path, kind, kind=kind) for kind in kinds))
        assert [name for name, _ in record.ends] == ["frontend", "worker", "router"]

    asyncio.run(body())


def test_children_that_will_not_end_are_killed_within_five_seconds(tmp_path: Path) -> None:
    async def body() -> None:
        async with _supervisor() as (supervisor, record):
            stopped, deaf = _child(tmp_path, "stopped"), _child(tmp_path, "deaf", "deaf", kind="frontend")
            await _up(supervisor, stopped, deaf)
            os.kill(stopped.process.pid, signal.SIGSTOP)
            began = time.monotonic()
        assert time.monotonic() - began < 5.0
        assert all(_is_gone(pid) for _, pid in record.spawns)
        assert sorted(record.ends) == sorted(record.spawns)

    asyncio.run(body())


def test_all_children_end_at_once_when_the_end_is_cut_short(tmp_path: Path) -> None:
    async def body() -> None:
        async with _supervisor() as (supervisor, record):
            await _up(supervisor, _child(tmp_path, "deaf", "deaf", kind="frontend"))
            began = time.monotonic()
            ending = asyncio.create_task(supervisor.end(), name="end")
            await asyncio.sleep(0)
            ending.cancel()
            await record.wait(lambda: bool(record.ends))
            assert time.monotonic() - began < 1.0
            await asyncio.wait([ending])

    asyncio.run(body())


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with _supervisor() as (supervisor, _):
            child = _child(tmp_path, "decode-0", "parent")
            await _up(supervisor, child)
            grandchildren.append(psutil.Process(int(child.log.read_text())))
        psutil.wait_procs(grandchildren, timeout=LIMIT_S)
        assert _is_gone(grandchildren[0].pid)

    grandchildren: list[psutil.Process] = []
    asyncio.run(body())


def test_a_child_is_on_its_cores_and_this_process_stays_on_all_of_its_own(tmp_path: Path) -> None:
    async def body() -> None:
        own = os.sched_getaffinity(0)
        core = max(own)
        async with _supervisor() as (supervisor, _):
            pinned, free = _child(tmp_path, "pinned", cores=(core,)), _child(tmp_path, "free")
            await _up(supervisor, pinned, free)
            assert os.sched_getaffinity(pinned.process.pid) == {core}
            assert os.sched_getaffinity(free.process.pid) == own
        assert os.sched_getaffinity(0) == own

    asyncio.run(body())


_LAUNCHER = """
import asyncio, sys
from pathlib import Path
from services.tasks import open_tasks
from services.launcher.supervisor import Supervisor
from tests.services.launcher.test_supervisor import Record, _child, _up

async def body(folder):
    async with open_tasks() as tasks:
        supervisor = Supervisor(tasks, Record())
        await _up(supervisor, _child(folder, "a", "deaf"), _child(folder, "b", "deaf"))
        print(*(child.process.pid for child in supervisor.children), flush=True)
        await asyncio.Event().wait()

asyncio.run(body(Path(sys.argv[1])))
"""


def test_a_launcher_that_was_killed_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        children = [psutil.Process(int(pid)) for pid in launcher.stdout.readline().split()]
        assert len(children) == 2
        launcher.send_signal(signal.SIGKILL)
        psutil.wait_procs(children, timeout=LIMIT_S)
    assert all(_is_gone(child.pid) for child in children)
