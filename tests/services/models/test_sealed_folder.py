import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from proto.errors import DeadlineExceeded, InvalidSetting
from services.models.sealed_folder import SEAL_NAME, ensure_folder, is_whole

_SPAWN = multiprocessing.get_context("spawn")


def _fill(folder: Path, scratch: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "weights").write_bytes(bytes(range(256)) * 100)
    (scratch / "source").write_text("thrown away")


def _must_not_fill(folder: Path, scratch: Path) -> None:
    raise AssertionError("made again")


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_is_made_once_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "models" / "tiny"
    ensure_folder(target, "recipe", _fill, wait_s=1)
    ensure_folder(target, "recipe", _must_not_fill, wait_s=1)
    assert _names(target) == {"config.json", "weights", SEAL_NAME}
    assert _names(target.parent) <= {"tiny", ".tiny.lock"}


def _flip_a_bit(target: Path) -> None:
    data = bytearray((target / "weights").read_bytes())
    data[1000] ^= 1
    (target / "weights").write_bytes(data)


def _cut_short(target: Path) -> None:
    os.truncate(target / "weights", 10)


def _remove_a_file(target: Path) -> None:
    (target / "config.json").unlink()


def _remove_the_seal(target: Path) -> None:
    (target / SEAL_NAME).unlink()


def _garble_the_seal(target: Path) -> None:
    (target / SEAL_NAME).write_bytes(b'{"recipe": 7}\xff')


@pytest.mark.parametrize(
    "damage", [_flip_a_bit, _cut_short, _remove_a_file, _remove_the_seal, _garble_the_seal]
)
def test_a_damaged_folder_is_made_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    target = tmp_path / "tiny"
    ensure_folder(target, "recipe", _fill, wait_s=1)
    damage(target)
    assert not is_whole(target, "recipe")
    ensure_folder(target, "recipe", _fill, wait_s=1)
    assert is_whole(target, "recipe")
    assert _names(tmp_path) <= {"tiny", ".tiny.lock"}


def test_another_recipe_is_another_folder(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    ensure_folder(target, "old", _fill, wait_s=1)
    ensure_folder(target, "new", _fill, wait_s=1)
    assert is_whole(target, "new")
    assert not is_whole(target, "old")


def test_a_maker_that_fails_leaves_the_old_folder_and_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    ensure_folder(target, "old", _fill, wait_s=1)

    def fail(folder: Path, scratch: Path) -> None:
        _fill(folder, scratch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_folder(target, "new", fail, wait_s=1)
    assert is_whole(target, "old")
    assert _names(tmp_path) <= {"tiny", ".tiny.lock"}


def _die_in_the_middle(target: Path) -> None:
    def die(folder: Path, scratch: Path) -> None:
        _fill(folder, scratch)
        os._exit(1)

    ensure_folder(target, "recipe", die, wait_s=1)


def test_what_a_maker_that_died_left_behind_is_swept_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    process = _SPAWN.Process(target=_die_in_the_middle, args=(target,))
    process.start()
    process.join(30)
    assert process.exitcode == 1
    assert not target.exists()
    assert list(tmp_path.glob(".tiny.*.partial"))
    ensure_folder(target, "recipe", _fill, wait_s=1)
    assert is_whole(target, "recipe")
    assert not list(tmp_path.glob(".tiny.*.partial"))


def _make_and_note(target: Path, log: Path) -> None:
    def fill(folder: Path, scratch: Path) -> None:
        with log.open("a") as file:
            file.write("made\n")
        _fill(folder, scratch)

    ensure_folder(target, "recipe", fill, wait_s=30)


def test_of_several_processes_at_once_one_makes_the_folder(tmp_path: Path) -> None:
    target, log = tmp_path / "tiny", tmp_path / "log"
    processes = [_SPAWN.Process(target=_make_and_note, args=(target, log)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "made\n"
    assert is_whole(target, "recipe")


def test_the_wait_for_another_maker_is_bounded(tmp_path: Path) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with FileLock(tmp_path / ".tiny.lock"):
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(10)
        with pytest.raises(DeadlineExceeded):
            ensure_folder(tmp_path / "tiny", "recipe", _must_not_fill, wait_s=0.1)
    finally:
        release.set()
        holder.join()


def test_a_file_system_that_refuses_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InvalidSetting, match="KVMESH_CACHE"):
        ensure_folder(tmp_path / "file" / "tiny", "recipe", _fill, wait_s=1)
