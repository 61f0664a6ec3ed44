"""Roles, states and terms of a worker.

```
            order (epoch n -> n+1)
  ready ───────────► draining ───────► ready (new role, epoch n+1)
    │                    │
    └── shutdown ────────┴───────────► leaving (final)
```
"""

from enum import StrEnum

from proto.struct import WireStruct


class Role(StrEnum):
    """Which work a worker takes. There is no third role: a decode worker alone does its own prefill."""

    PREFILL = "prefill"
    DECODE = "decode"


class WorkerState(StrEnum):
    READY = "ready"
    DRAINING = "draining"
    LEAVING = "leaving"


class Order(WireStruct, frozen=True):
    """The role that a worker shall have, and the epoch that begins with it."""

    worker: str
    role: Role
    epoch: int
