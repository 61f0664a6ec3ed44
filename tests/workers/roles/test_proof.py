"""When the end of a process is proven, and when it is not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from proto.cards import ProcessIdentity
from workers.roles.proof import are_gone, is_gone, own_identity

WAITS = "import sys; print('up', flush=True); sys.stdin.read()"
FIRST_THREAD_ENDS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read, daemon=True).start()
print('up', flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@contextmanager
def child(script: str) -> Iterator["subprocess.Popen[str]"]:
    """A child that has said that it is up; killed and reaped at the end, if it was not before."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/[pid]/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def identity_of(pid: int) -> ProcessIdentity:
    """As `own_identity` would say it in that process."""
    return msgspec.structs.replace(own_identity(), pid=pid, start_ticks=int(stat_of(pid)[19]))


def wait_zombie(pid: int) -> None:
    """Until the process has ended; it stays to be reaped."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_live_process_is_not_gone() -> None:
    assert own_identity().pid == os.getpid()
    assert not is_gone(own_identity())
    assert not is_gone(identity_of(os.getppid()))


def test_a_killed_child_is_gone_before_and_after_it_is_reaped() -> None:
    with child(WAITS) as process:
        identity = identity_of(process.pid)
        assert not is_gone(identity)
        process.kill()
        wait_zombie(process.pid)
        assert is_gone(identity)
        process.wait()
        assert is_gone(identity)


def test_a_worker_of_many_processes_is_gone_when_each_of_them_is() -> None:
    own = own_identity()
    ended = msgspec.structs.replace(own, start_ticks=own.start_ticks - 1)
    assert are_gone([ended, ended])
    assert not are_gone([ended, own])


def test_a_process_whose_first_thread_alone_has_ended_is_not_gone() -> None:
    with child(FIRST_THREAD_ENDS) as process:
        identity = identity_of(process.pid)
        while stat_of(process.pid)[0] != "Z":  # it ends within a moment
            os.sched_yield()
        assert not is_gone(identity)
        process.kill()
        wait_zombie(process.pid)
        assert is_gone(identity)


def test_a_pid_that_another_process_has_now_is_gone() -> None:
    own = own_identity()
    assert is_gone(msgspec.structs.replace(own, start_ticks=own.start_ticks - 1))


@pytest.mark.parametrize("field", ["boot_id", "pid_namespace"])
def test_nothing_is_proven_from_another_boot_or_pid_namespace(field: str) -> None:
    with child(WAITS) as process:
        identity = msgspec.structs.replace(identity_of(process.pid), **{field: "another"})
        process.kill()
        process.wait()
        assert not is_gone(identity)
