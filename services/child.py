"""A child process that cannot outlive this one: spawned, waited for without polling, ended for certain.

The kernel kills the child when the *thread* that spawned it ends (`PR_SET_PDEATHSIG`), so `spawn_child` is
called from a thread that lives as long as the process: the main one. The signal is set by a few lines of
Python between fork and the real program, not by a `preexec_fn`, which may deadlock in a process with threads.
A child has a process group of its own: Ctrl-C in a terminal reaches the parent alone, which ends its children
in its own order. It stays in the session of its parent: a kernel that shares the cores out by sessions
(CONFIG_SCHED_AUTOGROUP) heeds niceness only within one, and may leave one that has slept, as the directory's
server has, waiting for a quarter of a second beside others that compute.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_STILL = "TtZX"  # states of threads: stopped, traced, ended

_EXEC = """
import ctypes, os, sys
parent, niceness, *argv = sys.argv[1:]
ctypes.CDLL(None).prctl(1, 9)
os.getppid() == int(parent) or os._exit(1)
os.nice(int(niceness))
os.execvp(argv[0], argv)
"""


def bound_command(argv: Sequence[str | Path], *, niceness: int = 0) -> list[str]:
    """What to start in place of `argv`, so that the kernel kills it with the thread that starts it.

    `niceness`: how much more than this process it yields to others.
    """
    own = map(str, (os.getpid(), niceness))
    return [sys.executable, "-I", "-S", "-c", _EXEC, *own, *map(str, argv)]


def spawn_child(
    argv: Sequence[str | Path], *, log: Path, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts `argv`; what it prints is appended to `log`. The pid stays that of `argv` itself."""
    with log.open("ab") as output:
        return subprocess.Popen(
            bound_command(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environ,
            process_group=0,
        )


def wait_child(child: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """The exit code of `child` once it has ended (negative: the signal), None when `limit_s` passed first."""
    if child.poll() is None:
        pidfd = os.pidfd_open(child.pid)
        try:
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            ended.poll(limit_s * 1000)
        finally:
            os.close(pidfd)
    return child.poll()


async def wait_child_ended(child: subprocess.Popen[bytes]) -> int:
    """The exit code of `child`, once it has ended.

    Cancel: leaves the child as it is.
    """
    if child.poll() is None:
        await _readable(os.pidfd_open(child.pid))
    return child.wait()


async def _readable(pidfd: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def end_child(child: subprocess.Popen[bytes], limit_s: float) -> int:
    """Asks `child` to end, kills it when it has not after `limit_s`, and reaps it; a stopped one is woken."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        if wait_child(child, limit_s) is None:
            child.kill()
    return child.wait()


def suspend(pid: int) -> None:
    """SIGSTOP, and until no thread of the process runs any more: one may go on for a moment after the call.

    Raises:
        ProcessLookupError: there is no such process.
    """
    os.kill(pid, signal.SIGSTOP)
    while any(state not in _STILL for state in _thread_states(pid)):
        time.sleep(0.001)


def _thread_states(pid: int) -> list[str]:
    """A letter for each, as in proc(5); none once the process is gone."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.append(stat.read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
    return states
