"""What must be flat while roles change: what each worker holds of memory, threads, files and blocks."""

from dataclasses import dataclass

import psutil

from tests.mesh.running_mesh import RunningMesh

MIB = 2**20


@dataclass(frozen=True)
class Figures:
    """Of one process. Units: `private_mib` what it shares with nobody; `blocks` of its pool."""

    private_mib: float
    num_threads: int
    num_files: int
    blocks: float


def read_figures(mesh: RunningMesh) -> dict[str, Figures]:
    """By name of child."""
    return {
        child.name: _read(mesh, child.name, child.pid)
        for child in mesh.file.processes
        if child.kind == "worker"
    }


def _read(mesh: RunningMesh, child: str, pid: int) -> Figures:
    process = psutil.Process(pid)
    return Figures(
        private_mib=process.memory_full_info().uss / MIB,
        num_threads=process.num_threads(),
        num_files=process.num_fds(),
        blocks=mesh.metric(child, "kvmesh_blocks"),
    )
