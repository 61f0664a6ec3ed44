"""A folder that is whole or absent: made beside, sealed with the digest of every file, renamed into place.

```
models/.{name}.lock            held by the one process that makes the folder
models/.{name}.{x}.partial/    its scratch; swept by the next maker if it died
models/{name}/                 appears by one rename, complete
models/{name}/kvmesh-seal.json what lies in it and how it was made
```
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import msgspec
from filelock import FileLock, Timeout

from proto.errors import DeadlineExceeded, InvalidSetting

SEAL_NAME = "kvmesh-seal.json"

Fill = Callable[[Path, Path], None]
"""Puts the files into its first argument; may leave anything in its second, which is thrown away."""


class SealedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    num_bytes: int
    sha256: str


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`recipe` names source and converter: another recipe is another folder."""

    recipe: str
    files: dict[str, SealedFile]


def ensure_folder(target: Path, recipe: str, fill: Fill, wait_s: float) -> None:
    """Make `target` by `fill` unless it is there, whole and made by `recipe`; any number may call at once.

    Units: `wait_s` seconds to wait for another process that is making it.
    Cancel: whatever `fill` raises passes through, and `target` is as before.

    Raises:
        DeadlineExceeded: another process held the lock for `wait_s`.
        InvalidSetting: the file system refuses.
    """
    try:
        if is_whole(target, recipe):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock"), timeout=wait_s):
            if not is_whole(target, recipe):
                _make(target, recipe, fill)
    except Timeout as error:
        raise DeadlineExceeded(what=f"the other process that makes {target}", limit_s=wait_s) from error
    except OSError as error:
        raise InvalidSetting(setting="KVMESH_CACHE", reason=f"cannot make {target}: {error}") from error


def is_whole(folder: Path, recipe: str) -> bool:
    """Every sealed file is there with its digest; a folder without a readable seal is not whole."""
    try:
        seal = msgspec.json.decode((folder / SEAL_NAME).read_bytes(), type=Seal)
        return seal.recipe == recipe and all(
            _seal_file(folder / name) == sealed for name, sealed in seal.files.items()
        )
    except (OSError, msgspec.DecodeError):
        return False


def _make(target: Path, recipe: str, fill: Fill) -> None:
    _sweep(target)
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name}.", suffix=".partial", dir=target.parent, ignore_cleanup_errors=True
    ) as workspace:
        folder, scratch = Path(workspace, "folder"), Path(workspace, "scratch")
        folder.mkdir()
        scratch.mkdir()
        fill(folder, scratch)
        _seal(folder, recipe)
        if target.exists():
            # readers of the damaged one keep their open files
            target.rename(scratch / "replaced")
        folder.rename(target)
        _sync(target.parent)


def _sweep(target: Path) -> None:
    """Remove what makers that died left behind; the lock says that none is at work."""
    for leftover in target.parent.glob(f".{target.name}.*.partial"):
        rmtree(leftover, ignore_errors=True)


def _seal(folder: Path, recipe: str) -> None:
    names = sorted(path.name for path in folder.iterdir())
    seal = Seal(recipe, {name: _seal_file(folder / name) for name in names})
    (folder / SEAL_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(seal), indent=2))
    for name in (*names, SEAL_NAME):
        _sync(folder / name)
    _sync(folder)


def _seal_file(path: Path) -> SealedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SealedFile(os.fstat(file.fileno()).st_size, digest)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
