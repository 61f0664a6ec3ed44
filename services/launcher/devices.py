"""Where workers run: `1`, `cuda:0-3`, `cpu:0,cpu:2-3` become one place per worker.

A number asks for that many workers wherever there is room. `cuda:0-3` is four workers, one a GPU; `cpu:2-3`
is one worker on two cores, since a worker uses many cores but one GPU.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from proto.errors import InvalidSetting

_PART = re.compile(r"(?P<kind>cpu|cuda):(?P<first>\d+)(?:-(?P<last>\d+))?")


class Place(msgspec.Struct, frozen=True):
    """Where one worker runs. No `cores`: wherever the system likes; `device` is a torch device name."""

    device: str
    cores: tuple[int, ...] = ()


class Machine(msgspec.Struct, frozen=True):
    """What there is to run on: the cores this process may use, and the indices of the GPUs."""

    cores: tuple[int, ...]
    gpus: tuple[int, ...]


def this_machine(devices: Path = Path("/dev")) -> Machine:
    """GPUs are counted by their device files, or taken from CUDA_VISIBLE_DEVICES: torch is the workers'."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        num_gpus = len([path for path in devices.glob("nvidia*") if path.name[6:].isdigit()])
    else:
        num_gpus = len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return Machine(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=tuple(range(num_gpus)))


def parse_places(text: str, setting: str) -> int | list[Place]:
    """A number of workers, or the place of each.

    Raises:
        InvalidSetting: it is neither.
    """
    if text.strip().isdecimal():
        return int(text)
    return [place for part in text.split(",") for place in _parse_part(part.strip(), setting)]


def _parse_part(part: str, setting: str) -> list[Place]:
    found = _PART.fullmatch(part)
    if found is None:
        raise InvalidSetting(
            setting=setting,
            reason=f"{part!r} is neither a number nor like cpu:0, cpu:0-1, cuda:0 or cuda:0-3",
        )
    first = int(found["first"])
    last = int(found["last"] or first)
    if last < first:
        raise InvalidSetting(setting=setting, reason=f"{part!r} counts backwards")
    indices = range(first, last + 1)
    if found["kind"] == "cpu":
        return [Place("cpu", tuple(indices))]
    return [Place(f"cuda:{index}") for index in indices]


def place_workers(wanted: Sequence[int | list[Place]], machine: Machine) -> list[list[Place]]:
    """A place for every worker of each group; places that were named are kept as they are.

    Counted workers share what nobody named: the GPUs in turn where there are any, else the cores in equal
    runs. With more workers than cores, none is pinned.

    Raises:
        InvalidSetting: a named core or GPU is not there.
    """
    named = [place for group in wanted if not isinstance(group, int) for place in group]
    for place in named:
        _check_place(place, machine)
    num_counted = sum(group for group in wanted if isinstance(group, int))
    counted = iter(_spread(num_counted, named, machine))
    return [[next(counted) for _ in range(group)] if isinstance(group, int) else group for group in wanted]


def _check_place(place: Place, machine: Machine) -> None:
    missing = set(place.cores) - set(machine.cores)
    if missing:
        raise InvalidSetting(
            setting="devices", reason=f"there is no core {min(missing)}: {_listed(machine.cores)} can be used"
        )
    if place.device != "cpu" and int(place.device.rpartition(":")[2]) not in machine.gpus:
        raise InvalidSetting(
            setting="devices",
            reason=f"there is no {place.device}: this machine shows {len(machine.gpus)} GPUs",
        )


def _spread(num_workers: int, named: Sequence[Place], machine: Machine) -> list[Place]:
    taken_gpus = {place.device for place in named}
    every_gpu = [f"cuda:{index}" for index in machine.gpus]
    gpus = [gpu for gpu in every_gpu if gpu not in taken_gpus] or every_gpu
    if gpus:
        return [Place(gpus[index % len(gpus)]) for index in range(num_workers)]
    taken_cores = {core for place in named for core in place.cores}
    cores = [core for core in machine.cores if core not in taken_cores]
    if num_workers > len(cores):
        return [Place("cpu")] * num_workers
    return [
        Place("cpu", tuple(cores[len(cores) * i // num_workers : len(cores) * (i + 1) // num_workers]))
        for i in range(num_workers)
    ]


def _listed(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores[:8])) + (" …" if len(cores) > 8 else "")
