"""What every process of a mesh must be told alike: the table `[mesh]`."""

import platform
from typing import Annotated

import msgspec


class MeshSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mesh a process belongs to, and where in it the process stands."""

    ns: Annotated[
        str,
        msgspec.Meta(
            description="namespace: meshes of different ones share NATS and etcd and never meet",
            pattern="^[A-Za-z0-9_-]{1,64}$",
        ),
    ] = "default"
    host: Annotated[
        str, msgspec.Meta(description="name of this host; empty: what the system calls itself")
    ] = ""
    zone: Annotated[
        str, msgspec.Meta(description="name of what shares a fast network with this host, such as a rack")
    ] = ""
    beat_s: Annotated[float, msgspec.Meta(description="seconds between two signs of life", gt=0, le=10)] = 1.0
    lost_after_s: Annotated[
        float, msgspec.Meta(description="seconds without a sign of life after which a process is lost", gt=0)
    ] = 3.0
    drain_limit_s: Annotated[
        float,
        msgspec.Meta(
            description="seconds that an ending process gives the work it has; under `kvmesh up` at most 1",
            ge=0,
        ),
    ] = 30.0

    def __post_init__(self) -> None:
        if self.lost_after_s < 2 * self.beat_s:
            raise ValueError("lost_after_s must be at least twice beat_s, or one late beat loses a process")

    @property
    def host_name(self) -> str:
        """`host`, or what the system calls itself."""
        return self.host or platform.node()
