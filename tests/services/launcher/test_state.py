"""The state folder: one launcher, and one readable word about where its mesh is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proto.errors import InvalidSetting
from services.launcher.state import MeshFile, RunningProcess, lock_state, read_mesh, remove_mesh, write_mesh

HOLD = """
import signal, sys
from pathlib import Path
from services.launcher.state import lock_state
with lock_state(Path(sys.argv[1])):
    print("locked", flush=True)
    signal.pause()
"""


def test_a_second_launcher_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with (
        lock_state(tmp_path),
        pytest.raises(InvalidSetting, match=f"process {os.getpid()}"),
        lock_state(tmp_path),
    ):
        pass


def test_a_killed_launcher_leaves_the_folder_free(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(InvalidSetting, match=f"process {holder.pid}"), lock_state(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with lock_state(tmp_path):
            pass


def test_two_folders_live_side_by_side(tmp_path: Path) -> None:
    with lock_state(tmp_path / "a"), lock_state(tmp_path / "b"):
        assert (tmp_path / "a").is_dir()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetting, match="state"), lock_state(tmp_path / "file"):
        pass


def test_what_is_written_of_a_mesh_is_read_until_it_is_removed(tmp_path: Path) -> None:
    router = RunningProcess(
        name="router-0", kind="router", pid=7, log="r.log", admin_url="http://127.0.0.1:1"
    )
    mesh = MeshFile(
        launcher_pid=1,
        namespace="n",
        nats_url="nats://127.0.0.1:1",
        etcd_endpoint="127.0.0.1:2",
        url="http://127.0.0.1:3",
        processes=[router],
    )
    write_mesh(tmp_path, mesh)
    assert read_mesh(tmp_path) == mesh
    remove_mesh(tmp_path)
    with pytest.raises(InvalidSetting, match="no mesh runs"):
        read_mesh(tmp_path)


def test_an_unreadable_mesh_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mesh.json").write_text("{")
    with pytest.raises(InvalidSetting, match=r"mesh\.json"):
        read_mesh(tmp_path)
