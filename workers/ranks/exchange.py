"""What ranks give each other in mid-step: sums within a stage, the stream between stages, logits."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workers.model.share import Run
from workers.ranks.apart import RanksApart
from workers.ranks.grid import Grid


class Exchange:
    """One rank's side. Made by `open_exchange`. Every call is met by the same call of the others.

    All of it raises `RanksApart`.
    """

    def __init__(self, grid: Grid, rank: int, slices: dist.ProcessGroup | None) -> None:
        self._grid = grid
        self._place = grid.place_of(rank)
        self._slices = slices

    def add_up(self, x_TM: torch.Tensor) -> None:
        """What the slices of this stage have of the same rows.

        Mutates: `x_TM`.
        """
        with _translated():
            dist.all_reduce(x_TM, group=self._slices)

    def receive(self, x_TM: torch.Tensor) -> None:
        """What the stage before hands on to this slice.

        Mutates: `x_TM`.
        """
        with _translated():
            dist.recv(x_TM, self._grid.rank_at(self._place.stage - 1, self._place.slice))

    def hand_on(self, x_TM: torch.Tensor) -> None:
        """To this slice of the next stage."""
        with _translated():
            dist.send(x_TM, self._grid.rank_at(self._place.stage + 1, self._place.slice))

    def gather(self, own_BX: torch.Tensor, columns: Sequence[Run]) -> torch.Tensor:
        """To the first slice all columns of the same rows; `columns[i]` are those of slice i."""
        with _translated():
            if self._place.slice:
                dist.send(own_BX.contiguous(), self._grid.rank_at(self._place.stage, 0))
                return own_BX
            parts_BX = [own_BX, *(own_BX.new_empty(len(own_BX), run.num) for run in columns[1:])]
            for place, part_BX in enumerate(parts_BX[1:], 1):
                dist.recv(part_BX, self._grid.rank_at(self._place.stage, place))
            return torch.cat(parts_BX, dim=1)


def make_rendezvous() -> Path:
    """A file by which ranks find each other: without a name, so that it is gone with this process.

    It is never closed: a store opens its file once more when it is collected, and ends the process if that
    is something else by then. Source: torch, csrc/distributed/c10d/FileStore.cpp, the destructor.
    """
    return Path(f"/proc/{os.getpid()}/fd/{os.memfd_create('rendezvous')}")


@contextmanager
def open_exchange(
    grid: Grid, rank: int, rendezvous: Path, device: torch.device, stall_s: float
) -> Iterator[Exchange]:
    """Once all ranks have come to the file at `rendezvous`; at most one at a time in a process.

    Raises:
        RanksApart: they have not within `stall_s`.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the ranks of a worker are on one machine
    is_on_gpus = device.type == "cuda"
    with _translated():
        dist.init_process_group(
            "nccl" if is_on_gpus else "gloo",
            init_method=rendezvous.as_uri(),
            rank=rank,
            world_size=grid.num_ranks,
            timeout=timedelta(seconds=stall_s),
            device_id=device if is_on_gpus else None,
        )
    try:
        yield Exchange(grid, rank, _meet_slices(grid, rank))
    finally:
        dist.destroy_process_group()


def _meet_slices(grid: Grid, rank: int) -> dist.ProcessGroup | None:
    """Every rank makes the groups of all stages, in one order: so the library wants it."""
    if grid.tp == 1:
        return None
    with _translated():
        groups: list[dist.ProcessGroup] = [
            dist.new_group([grid.rank_at(stage, place) for place in range(grid.tp)])
            for stage in range(grid.pp)
        ]
    return groups[grid.place_of(rank).stage]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RanksApart(f"the ranks of this worker have lost each other: {reason}") from error
