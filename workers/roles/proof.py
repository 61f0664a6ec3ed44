"""When a process is gone for certain.

Nothing but the end of a process proves that it will not write: not time (a stopped process wakes), not a lost
lease, not a disconnect, not a successor of the same name. From the same boot and PID namespace, a pid without
a process of that start time is such a proof; so is a zombie without a thread left, whose memory is gone. A
zombie alone is not: the first thread of a process may have ended while others write on.
Source: proc(5), `/proc/[pid]/stat` (3 state, 20 num_threads, 22 starttime; hidepid hides those of others).
"""

import os
from collections.abc import Iterable
from pathlib import Path

from proto.cards import ProcessIdentity

_DEAD_STATES = ("Z", "X")
_STATE, _THREADS, _START = 0, 17, 19


def own_identity() -> ProcessIdentity:
    """The identity of the calling process."""
    fields = _try_read_stat(os.getpid())
    if fields is None:
        raise RuntimeError("the calling process is not in /proc")
    return ProcessIdentity(_boot_id(), _pid_namespace(), os.getpid(), int(fields[_START]))


def is_gone(process: ProcessIdentity) -> bool:
    """Whether the end of `process` is proven; False also when it cannot be known from here."""
    if (process.boot_id, process.pid_namespace) != (_boot_id(), _pid_namespace()):
        return False
    fields = _try_read_stat(process.pid)
    if fields is None:
        return not _exists(process.pid)
    is_dead = fields[_STATE] in _DEAD_STATES and int(fields[_THREADS]) <= 1
    return is_dead or int(fields[_START]) != process.start_ticks


def are_gone(processes: Iterable[ProcessIdentity]) -> bool:
    """Whether the end of each of them is proven: of a worker of many ranks any may write to the last."""
    return all(is_gone(process) for process in processes)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _try_read_stat(pid: int) -> list[str] | None:
    """The fields from the state on; None when /proc shows no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything; the fields after it are numbers and letters.
    return stat.rpartition(")")[2].split()


def _exists(pid: int) -> bool:
    """Whether there is such a process, also one that /proc hides because it is another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
