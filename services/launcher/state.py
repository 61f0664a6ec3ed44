"""The state folder of one mesh: locked by its launcher, with `mesh.json` saying where everything listens."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from proto.errors import InvalidSetting

_LOCK = "launcher.lock"
_MESH = "mesh.json"


class RunningProcess(msgspec.Struct, frozen=True):
    """A child as it runs now. `admin_url` is empty for nats-server and etcd."""

    name: str
    kind: str
    pid: int
    log: str
    admin_url: str = ""


class MeshFile(msgspec.Struct, frozen=True):
    """What another command needs to find a mesh that a launcher runs."""

    launcher_pid: int
    namespace: str
    nats_url: str
    etcd_endpoint: str
    url: str
    processes: list[RunningProcess]


@contextmanager
def lock_state(state_dir: Path) -> Iterator[None]:
    """Keeps `state_dir` for this process until the body ends, or the process does.

    Raises:
        InvalidSetting: another launcher has it, or it cannot be written.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InvalidSetting(
            setting="state", reason=f"{state_dir} is no folder to write in: {error}"
        ) from error
    try:
        _lock(handle, state_dir)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, state_dir: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
        reason = f"{state_dir} belongs to a mesh that runs (process {holder}); choose another folder"
        raise InvalidSetting(setting="state", reason=reason) from error
    os.truncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


def write_mesh(state_dir: Path, mesh: MeshFile) -> None:
    """Replaces `mesh.json`; a reader sees the old one or the new one."""
    scratch = state_dir / f"{_MESH}.new"
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(mesh), indent=2))
    scratch.replace(state_dir / _MESH)


def remove_mesh(state_dir: Path) -> None:
    (state_dir / _MESH).unlink(missing_ok=True)


def read_mesh(state_dir: Path) -> MeshFile:
    """
    Raises:
        InvalidSetting: no launcher left a readable `mesh.json` there.
    """
    path = state_dir / _MESH
    try:
        return msgspec.json.decode(path.read_bytes(), type=MeshFile)
    except FileNotFoundError as error:
        reason = f"no mesh runs in {state_dir}; name its folder, or give --nats and --etcd"
        raise InvalidSetting(setting="state", reason=reason) from error
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidSetting(setting="state", reason=f"{path} cannot be read: {error}") from error
