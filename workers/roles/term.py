"""Which role a worker has, and in which epoch: one epoch, one role."""

from dataclasses import dataclass

from proto.errors import GoElsewhere
from proto.roles import FIRST_EPOCH, Role, WorkerState


@dataclass(slots=True)
class Term:
    """Owned by the worker's loop; what takes work asks it at the moment of taking.

    Units: `num_served` sequences and jobs that ended here in this epoch; `change` counts the changes of role
    and state, so that of two words about them the newer is known.
    """

    worker: str
    incarnation: str
    role: Role
    epoch: int = FIRST_EPOCH
    state: WorkerState = WorkerState.READY
    num_served: int = 0
    change: int = 0

    def turn(self, state: WorkerState) -> None:
        """From now on this is its state."""
        self.state = state
        self.change += 1

    def begin(self, role: Role, epoch: int) -> None:
        """The term before is over: from now on work of `role` is taken, stamped with `epoch`."""
        assert epoch > self.epoch
        self.role, self.epoch, self.num_served = role, epoch, 0
        self.turn(WorkerState.READY)

    def check_takes(self, role: Role, epoch: int | None = None) -> None:
        """Settle whether new work of `role`, stamped with `epoch` if any, is taken now.

        Raises:
            GoElsewhere: with the reason.
        """
        if self.state is not WorkerState.READY:
            raise GoElsewhere(worker=self.worker, reason=f"it is {self.state}")
        if self.role is not role:
            raise GoElsewhere(worker=self.worker, reason=f"its role is {self.role}")
        if epoch is not None and epoch != self.epoch:
            raise GoElsewhere(worker=self.worker, reason=f"its epoch is {self.epoch}, not {epoch}")
