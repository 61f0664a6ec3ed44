"""Which mesh to look at: the table `[status]`, and how its addresses are found."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.errors import InvalidSetting
from services.launcher.state import read_mesh
from services.mesh_settings import MeshSettings


class StatusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which mesh is looked at, and how."""

    state: Annotated[str, Meta(description="state folder of a mesh that `kvmesh up` runs")] = ".state"
    nats: Annotated[str, Meta(description="URL of the mesh's NATS; empty: as the state folder says")] = ""
    etcd: Annotated[str, Meta(description="host:port of its etcd; empty: as the state folder says")] = ""
    ns: Annotated[str, Meta(description="its namespace; empty: as the state folder says, else default")] = ""
    once: Annotated[bool, Meta(description="show the table once and end")] = False
    json: Annotated[bool, Meta(description="write the table once, as JSON")] = False
    pools: Annotated[bool, Meta(description="show the blocks of each pool, and each grant and pin, once")] = (
        False
    )
    refresh_s: Annotated[float, Meta(description="seconds between two looks", gt=0)] = 1.0
    connect_limit_s: Annotated[float, Meta(description="seconds that NATS and etcd may take", gt=0)] = 5.0


class Address(msgspec.Struct, frozen=True):
    nats_url: str
    etcd_endpoint: str
    ns: str


def find_mesh(settings: StatusSettings) -> Address:
    """What the settings say; what they leave open is in the state folder.

    Raises:
        InvalidSetting: no mesh runs there, or half of its address was given.
    """
    if settings.nats and settings.etcd:
        return Address(settings.nats, settings.etcd, settings.ns or MeshSettings().ns)
    if settings.nats or settings.etcd:
        raise InvalidSetting(setting="status", reason="--nats and --etcd go together")
    mesh = read_mesh(Path(settings.state))
    return Address(mesh.nats_url, mesh.etcd_endpoint, settings.ns or mesh.namespace)
