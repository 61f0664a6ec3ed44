"""When a process is gone for certain.

Nothing but the end of a process proves that it will not write: not time (a stopped process wakes), not a lost
lease, not a disconnect, not a successor of the same name. From the same boot and PID namespace, a pid without
a process of that start time is such a proof; so is a zombie, whose memory is gone already.
Source: proc(5), `/proc/[pid]/stat`.
"""

import os
from pathlib import Path

from proto.cards import ProcessIdentity

_DEAD_STATES = ("Z", "X")


def own_identity() -> ProcessIdentity:
    """The identity of the calling process."""
    start = _start_ticks(os.getpid())
    if start is None:
        raise RuntimeError("the calling process is not in /proc")
    return ProcessIdentity(_boot_id(), _pid_namespace(), os.getpid(), start)


def is_gone(process: ProcessIdentity) -> bool:
    """Whether the end of `process` is proven; False also when it cannot be known from here."""
    if (process.boot_id, process.pid_namespace) != (_boot_id(), _pid_namespace()):
        return False
    return _start_ticks(process.pid) != process.start_ticks


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _start_ticks(pid: int) -> int | None:
    """When the live process with this pid began; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything; the fields after it are numbers and letters.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in _DEAD_STATES else int(fields[18])
