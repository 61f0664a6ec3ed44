"""How much memory a process of this host may have: what is free, within the limits of its control groups.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil


class HostMemory(NamedTuple):
    """Units: `total_bytes` could this process have if nobody else had any, `free_bytes` are left."""

    total_bytes: int
    free_bytes: int


class _Version(NamedTuple):
    """Where a version of control groups keeps its numbers."""

    mount: str
    limit: str
    used: str
    cached: str


_V2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Version(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """`root` is where the system's files are."""
    host = psutil.virtual_memory()
    found = HostMemory(host.total, host.available)
    for group in _groups(root):
        found = HostMemory(*map(min, found, group))
    return found


def _groups(root: Path) -> Iterator[HostMemory]:
    """The limits of each control group that this process is in, and of those around it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        is_v1 = "memory" in controllers.split(",")
        if not is_v1 and number != "0":
            continue
        version = _V1 if is_v1 else _V2
        mount = root / version.mount
        own = mount / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(mount) and (found := _read_group(folder, version)):
                yield found


def _read_group(folder: Path, version: _Version) -> HostMemory | None:
    """None for a group without a limit, or one that cannot be seen from here."""
    limit, used = _text(folder / version.limit).strip(), _text(folder / version.used).strip()
    if not (limit.isdecimal() and used.isdecimal()):
        return None
    statistics = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
    cached_bytes = int(statistics.get(version.cached, 0))  # files, given up when memory runs short
    return HostMemory(int(limit), max(0, int(limit) - int(used) + cached_bytes))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
