"""Roles, states and terms of a worker, and how it is told to take another role.

```
            order (epoch n -> n+1)
  ready ───────────► draining ───────► ready (new role, epoch n+1)
    ▲ │                 │ │
    │ │                 │ └──────────► ready (old role, epoch n): it failed, or the order was taken back
    │ └── shutdown ─────┴────────────► leaving (final)
```
"""

from enum import StrEnum
from typing import Literal

from proto.struct import WireStruct

RoleStage = Literal["serving", "handing over", "ending grants", "checking", "announcing"]
"""How far a switch is; `serving` while there is none."""
FIRST_EPOCH = 1
"""That of a worker that was never ordered into another role."""


class Role(StrEnum):
    """Which work a worker takes. There is no third role: a decode worker alone does its own prefill."""

    PREFILL = "prefill"
    DECODE = "decode"


class WorkerState(StrEnum):
    READY = "ready"
    DRAINING = "draining"
    LEAVING = "leaving"


_RANK = {WorkerState.READY: 0, WorkerState.DRAINING: 1, WorkerState.LEAVING: 2}


def newness(epoch: int, change: int, state: WorkerState) -> tuple[bool, int, int, int]:
    """Of two words of one life of a worker, such as its card and its report, the higher is the newer.

    `leaving` is final. `change` counts the changes of a life; a sender that counts none only goes forward.
    """
    return (state is WorkerState.LEAVING, epoch, change, _RANK[state])


class DrainMode(StrEnum):
    """What becomes of running sequences: they end here, they move, or short ones end and the rest moves."""

    FINISH = "finish"
    MOVE = "move"
    BOTH = "both"


class Order(WireStruct, frozen=True):
    """The role that a worker shall have, and the epoch that begins with it.

    While its epoch is beyond the card's, a switch is under way; afterwards it stays, and a worker that starts
    anew under this name takes role and epoch from it. `is_begun`: the worker begins the role, and the order
    cannot be taken back any more. `placed_by` and `reason` are for people.

    Units: `limit_s` seconds that the work of the old role may take to let go.
    """

    worker: str
    role: Role
    epoch: int
    mode: DrainMode = DrainMode.MOVE
    limit_s: float = 30.0
    placed_by: str = ""
    reason: str = ""
    is_begun: bool = False


class SwitchRole(WireStruct, frozen=True, tag="switch_role"):
    """Operator -> worker: have this role. The worker places the order; the answer is `RoleProgress`, at once.

    Units: as in `Order`.
    """

    role: Role
    mode: DrainMode = DrainMode.MOVE
    limit_s: float = 30.0
    placed_by: str = "operator"
    reason: str = ""


class TakeBackRole(WireStruct, frozen=True, tag="take_back_role"):
    """Operator -> worker: keep the role that you have. The answer: `RoleProgress`."""


class AskRole(WireStruct, frozen=True, tag="ask_role"):
    """Operator -> worker: which role is it, and how far is the switch? The answer: `RoleProgress`."""


class RoleProgress(WireStruct, frozen=True, tag="role_progress"):
    """A worker's role, and the switch to the `wanted` one if that is under way.

    Units: `num_left` sequences and jobs that are to let go, and grants and pins beside theirs; `num_served`
    sequences and jobs that ended here in this epoch. `reason` tells why the last switch failed; empty when it
    did not.
    """

    role: Role
    epoch: int
    state: WorkerState
    wanted: Role | None = None
    stage: RoleStage = "serving"
    num_left: int = 0
    reason: str = ""
    num_served: int = 0
