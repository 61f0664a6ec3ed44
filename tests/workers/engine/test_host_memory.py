"""Memory is what the host has free, within the limits of every control group around the process."""

from pathlib import Path

import psutil
import pytest

from workers.engine.host_memory import HostMemory, read_host_memory

MIB = 2**20


def write(path: Path, **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)


def test_without_control_groups_it_is_the_host_s(tmp_path: Path) -> None:
    found, host = read_host_memory(tmp_path), psutil.virtual_memory()
    assert found.total_bytes == host.total
    assert 0 < found.free_bytes <= host.total


def test_the_narrowest_group_counts_and_files_that_can_be_given_up_are_free(tmp_path: Path) -> None:
    mount = tmp_path / "sys/fs/cgroup"
    write(tmp_path / "proc/self", cgroup="0::/pod/container\n")
    write(mount / "pod/container", memory__max="max\n", memory__current="1\n")
    write(
        mount / "pod",
        memory__max=f"{16 * MIB}\n",
        memory__current=f"{10 * MIB}\n",
        memory__stat=f"anon 5\ninactive_file {3 * MIB}\n",
    )
    assert read_host_memory(tmp_path) == HostMemory(16 * MIB, 9 * MIB)


def test_the_older_control_groups_are_read_too_and_a_namespace_hides_their_path(tmp_path: Path) -> None:
    write(tmp_path / "proc/self", cgroup="5:devices:/\n4:memory:/docker/abc\n0::/\n")
    write(
        tmp_path / "sys/fs/cgroup/memory",
        memory__limit_in_bytes=f"{16 * MIB}\n",
        memory__usage_in_bytes=f"{17 * MIB}\n",
    )
    assert read_host_memory(tmp_path) == HostMemory(16 * MIB, 0)


@pytest.mark.parametrize("path", ["/../../elsewhere", "/gone"])
def test_a_group_that_cannot_be_seen_limits_nothing(tmp_path: Path, path: str) -> None:
    write(tmp_path / "proc/self", cgroup=f"0::{path}\n")
    write(tmp_path / "elsewhere", memory__max="1\n", memory__current="1\n")
    assert read_host_memory(tmp_path).total_bytes == psutil.virtual_memory().total
