"""Which children a mesh has, and the command line of each: a pure function of settings and machine."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import msgspec

from proto.errors import InvalidSetting
from services.launcher.child import ChildSpec
from services.launcher.devices import Machine, Place, parse_places, place_workers
from services.launcher.up_settings import UpSettings
from services.mesh_settings import MeshSettings
from services.models.catalog import CATALOG

# The launcher ends its children within 5 s (see `supervisor`), so theirs is the shorter drain.
DRAIN_LIMIT_S = 1.0
MAX_WORKERS = 256


class Surroundings(msgspec.Struct, frozen=True):
    """What is known once the servers are planned. `admin_ports` gives one to each child, in their order."""

    state_dir: Path
    nats_url: str
    etcd_endpoint: str
    admin_ports: tuple[int, ...]
    config: Path | None = None


class WorkerPlaces(msgspec.Struct, frozen=True):
    prefill: tuple[Place, ...]
    decode: tuple[Place, ...]

    @property
    def by_role(self) -> Iterator[tuple[str, int, Place]]:
        for role, places in (("prefill", self.prefill), ("decode", self.decode)):
            for index, place in enumerate(places):
                yield role, index, place

    def __len__(self) -> int:
        return len(self.prefill) + len(self.decode)


def plan_places(settings: UpSettings, machine: Machine) -> WorkerPlaces:
    """
    Raises:
        InvalidSetting: the devices are not there or cannot be read, or nobody would decode.
    """
    prefill = parse_places(settings.prefill, "up.prefill")
    decode = parse_places(settings.decode, "up.decode")
    if not decode:
        reason = "at least one worker must decode (prefill may be 0: decode workers then do it themselves)"
        raise InvalidSetting(setting="up.decode", reason=reason)
    for setting, wanted in (("up.prefill", prefill), ("up.decode", decode)):
        if (wanted if isinstance(wanted, int) else len(wanted)) > MAX_WORKERS:
            raise InvalidSetting(setting=setting, reason=f"more than {MAX_WORKERS} workers on one machine")
    _check_ranks(settings, machine, {"prefill": prefill, "decode": decode})
    first, second = place_workers([prefill, decode], machine)
    return WorkerPlaces(prefill=tuple(first), decode=tuple(second))


def _check_ranks(settings: UpSettings, machine: Machine, wanted: Mapping[str, int | Sequence[Place]]) -> None:
    """Who has several GPUs has them one after the other, so that nobody else may be put on them."""
    for role, places in wanted.items():
        num_ranks = prod(_ranks_of(settings, role))
        if num_ranks > 1 and machine.gpus and isinstance(places, int) and places:
            reason = f"workers of {num_ranks} ranks: name the first GPU of each, as cuda:0,cuda:{num_ranks}"
            raise InvalidSetting(setting=f"up.{role}", reason=reason)


def _ranks_of(settings: UpSettings, role: str) -> tuple[int, int]:
    if role == "prefill":
        return settings.prefill_tp, settings.prefill_pp
    return settings.decode_tp, settings.decode_pp


def num_children(settings: UpSettings, places: WorkerPlaces) -> int:
    return settings.routers + len(places) + settings.frontends + settings.planner


def plan_children(settings: UpSettings, places: WorkerPlaces, around: Surroundings) -> list[ChildSpec]:
    """Every application of the mesh, in the order in which they are started."""
    mesh = _mesh_flags(settings.mesh)
    ports = iter(around.admin_ports)

    def child(kind: str, name: str, flags: Sequence[str], cores: tuple[int, ...] = ()) -> ChildSpec:
        port = next(ports)
        config = ("--config", str(around.config)) if around.config else ()
        where = ("--bus-url", around.nats_url, "--directory-endpoints", around.etcd_endpoint)
        argv = (*_command(), kind, *config, *mesh, *where, "--admin-port", str(port), *flags)
        return ChildSpec(name, kind, argv, around.state_dir / "logs" / f"{name}.log", port, cores)

    routers = [child("router", f"router-{index}", ()) for index in range(settings.routers)]
    workers = [
        child("worker", f"{role}-{index}", _worker_flags(settings, role, place), place.cores)
        for role, index, place in places.by_role
    ]
    listening = ("--host", settings.host, "--port", str(settings.port))
    shared = ("--shares-port",) if settings.frontends > 1 else ()
    frontends = [
        child("frontend", f"frontend-{index}", (*listening, *shared)) for index in range(settings.frontends)
    ]
    planners = [child("planner", "planner-0", ())] if settings.planner else []
    return [*routers, *workers, *frontends, *planners]


def _command() -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "services.cli")


def _mesh_flags(mesh: MeshSettings) -> tuple[str, ...]:
    """What was told of the mesh, to be told on."""
    told = msgspec.structs.asdict(mesh) | {"drain_limit_s": min(mesh.drain_limit_s, DRAIN_LIMIT_S)}
    flags: list[str] = []
    for field, value in told.items():
        if value != getattr(MeshSettings(), field):
            flags += [f"--mesh-{field.replace('_', '-')}", str(value)]
    return tuple(flags)


def _worker_flags(settings: UpSettings, role: str, place: Place) -> tuple[str, ...]:
    flags = ["--role", role, "--model", model_argument(settings.model), "--engine", settings.engine]
    for flag, parser in (
        ("--tool-parser", settings.tool_parser),
        ("--reasoning-parser", settings.reasoning_parser),
    ):
        flags += [flag, parser] if parser != "auto" else []
    for flag, num in zip(("--tp", "--pp"), _ranks_of(settings, role), strict=True):
        flags += [flag, str(num)] if num > 1 else []
    flags += ["--device", place.device]
    if place.device == "cpu":
        flags += ["--threads", str(max(1, len(place.cores)))]
    return tuple(flags)


def model_argument(model: str) -> str:
    """A folder by its whole path: a child may look from elsewhere, and a name must stay a name."""
    path = Path(model).expanduser()
    return str(path.resolve()) if model not in CATALOG and path.is_dir() else model
