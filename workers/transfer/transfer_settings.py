"""What an operator may say about the KV plane: interfaces, ports, transports, UCX's and NIXL's own settings.

UCX reads its environment when the first agent opens, and takes what it does not understand with a warning at
most, or fails later with a word that names no setting. So everything is checked here and applied before.
Source: UCX's `ucx_info -c`; NIXL's `get_plugin_params("UCX")`.
"""

import logging
import os
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import psutil
from msgspec import Meta

from proto.errors import InvalidSetting

log = logging.getLogger(__name__)

_MAX_PORT = 65535
_INFINIBAND = Path("/sys/class/infiniband")
_UCX_NAME = re.compile(r"UCX_[A-Z0-9_]+")
_NIXL_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SHARED_MEMORY = ("shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem", "self")
_RDMA = ("ib", "rc", "rc_v", "rc_x", "rc_mlx5", "rc_verbs", "ud", "ud_v", "ud_x", "ud_mlx5", "ud_verbs")
_RDMA_MORE = ("dc", "dc_x", "dc_mlx5", "gda", "srd")
_GPU = ("cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc", "ze_copy", "ze_ipc")
_TRANSPORTS = frozenset(("all", "tcp", *_SHARED_MEMORY, *_RDMA, *_RDMA_MORE, *_GPU))


class TransferSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[transfer]`. What is empty is left to UCX, and to the environment that the worker has."""

    strategy: Annotated[
        Literal["auto", "direct", "host"],
        Meta(
            description="direct: KV goes from pool to pool; host: through memory of the host, for GPUs or "
            "links that cannot; auto: direct where the pool's device can be reached"
        ),
    ] = "auto"
    staging_mib: Annotated[
        int,
        Meta(
            ge=1,
            description="with host, memory of the host in which others write and read, of all ranks; "
            "it bounds what is on its way here at once",
        ),
    ] = 256
    bounce_mib: Annotated[
        int,
        Meta(
            ge=1,
            description="with host, memory of each rank through which it writes to and reads from others",
        ),
    ] = 64
    interfaces: Annotated[
        list[str],
        Meta(description="network interfaces that KV may use, such as eth0 or mlx5_0:1; none: UCX chooses"),
    ] = []
    ports: Annotated[
        str,
        Meta(
            description="TCP ports to listen on for KV, first-last; each rank takes two, and up to six "
            "where connections hang; empty: any"
        ),
    ] = ""
    transports: Annotated[
        list[str],
        Meta(description="transports that KV may use, such as tcp, cma, rc; none: UCX chooses"),
    ] = []
    ucx: Annotated[
        list[str],
        Meta(description="more of UCX's settings, UCX_NAME=value each, over those of the environment"),
    ] = []
    nixl: Annotated[
        list[str],
        Meta(description="parameters of NIXL's UCX backend, name=value each, as num_workers=2"),
    ] = []
    stall_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds after which a transfer counts as stuck: health fails, its job is given up",
        ),
    ] = 10.0


def ucx_environment(settings: TransferSettings) -> dict[str, str]:
    """What UCX is to find in its environment.

    Raises:
        InvalidSetting: an interface that is not here, none that is up, a transport that is none, no range, no
            UCX setting.
    """
    environment = _assignments("transfer.ucx", settings.ucx, _UCX_NAME)
    if settings.interfaces:
        _check_interfaces(settings.interfaces)
        environment["UCX_NET_DEVICES"] = ",".join(settings.interfaces)
    if settings.ports:
        environment["UCX_TCP_PORT_RANGE"] = _port_range(settings.ports)
    if settings.transports:
        _check_transports(settings.transports)
        environment["UCX_TLS"] = ",".join(settings.transports)
    return environment


def backend_parameters(settings: TransferSettings) -> dict[str, str]:
    """What NIXL's UCX backend is made with; whether it has such parameters is known when it is opened.

    Raises:
        InvalidSetting: not of the form name=value.
    """
    return _assignments("transfer.nixl", settings.nixl, _NIXL_NAME)


def apply_to_environment(settings: TransferSettings) -> None:
    """Before the first agent opens: UCX looks only once.

    Mutates: the environment of this process.

    Raises:
        InvalidSetting: as `ucx_environment`.
    """
    environment = ucx_environment(settings)
    os.environ.update(environment)
    in_force = {name: value for name, value in sorted(os.environ.items()) if name.startswith("UCX_")}
    log.info("transfer settings", extra={"ucx": in_force, "nixl": backend_parameters(settings)})


def _assignments(setting: str, given: Iterable[str], name_form: re.Pattern[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, is_assignment, value = text.partition("=")
        if not is_assignment or not value or not name_form.fullmatch(name):
            reason = f"{text!r} is not {name_form.pattern}=value"
            raise InvalidSetting(setting=setting, reason=reason)
        found[name] = value
    return found


def _check_interfaces(wanted: Sequence[str]) -> None:
    """A device of RDMA may be named with its port, as in mlx5_0:1. UCX does without those that are down, and
    fails with a word that names nothing where no other is left."""
    network = {name for _, name in socket.if_nameindex()}
    rdma = {path.name for path in _INFINIBAND.iterdir()} if _INFINIBAND.is_dir() else set()
    for name in wanted:
        if name not in network and name.partition(":")[0] not in rdma:
            here = ", ".join(sorted(network | rdma))
            raise InvalidSetting(
                setting="transfer.interfaces", reason=f"{name!r} is not here; here are {here}"
            )
    links = psutil.net_if_stats()
    if all(name in links and not links[name].isup for name in wanted):
        names = ", ".join(repr(name) for name in wanted)
        raise InvalidSetting(setting="transfer.interfaces", reason=f"down: {names}; KV needs one that is up")


def _port_range(text: str) -> str:
    first, _, last = text.partition("-")
    is_range = first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= _MAX_PORT
    if not is_range:
        reason = f"{text!r} is no range of ports, such as 42000-42099"
        raise InvalidSetting(setting="transfer.ports", reason=reason)
    return text


def _check_transports(wanted: Iterable[str]) -> None:
    for name in wanted:
        if name.removeprefix("^") not in _TRANSPORTS:
            reason = f"{name!r} is none of {', '.join(sorted(_TRANSPORTS))}"
            raise InvalidSetting(setting="transfer.transports", reason=reason)
