"""What moves KV: the contract between those who write and read blocks and what carries them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from proto.errors import KvmeshError
from proto.jobs import Landing
from workers.transfer.copy_plan import Copies

Operation = Literal["WRITE", "READ"]
OnDone = Callable[[KvmeshError | None], None]
OnLanding = Callable[[Landing], None]


def _wait_on(_: float) -> None:
    """Whoever submitted it waits for its end, however late."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One posted operation.

    `may_start` is asked right before the post, or before the order for it leaves for the process that makes
    it: a holder whose grant has ended in the meantime must not write. Then one of the two is called, once:
    `on_refused` when nothing of it was posted (by who carries, or by who submits when that has ended),
    `on_done` with None or what went wrong: if that is not `NothingPosted`, its bytes may land even so.
    Neither is called when what carries ends while the transfer moves: then nothing is known. Before,
    `on_stalled` is called, once, when it takes longer than the seconds that any may: it may end yet, and its
    bytes may land.
    """

    operation: Operation
    agent: str
    copies: Copies
    remote_device: str
    may_start: Callable[[], bool]
    on_refused: Callable[[], None]
    on_done: OnDone
    on_stalled: Callable[[float], None] = _wait_on

    @property
    def num_bytes(self) -> int:
        return self.copies.num_bytes


OnMoved = Callable[[Transfer, float], None]


class Transfers(Protocol):
    """Every method may be called from any thread; callbacks may come in another."""

    @property
    def fault(self) -> str:
        """Why nothing moves any more, in a few words; empty while all is well."""
        ...

    @property
    def ailment(self) -> str:
        """`fault`, or that what was posted does not end."""
        ...

    def submit(self, transfer: Transfer) -> None:
        """Post a transfer after all that was submitted before."""
        ...

    def notify(self, agent: str, notice: bytes, on_done: OnDone) -> None:
        """Send a notice; what was `on_done` before this call lies at the target when the notice is heard."""
        ...

    def add_peer(self, agent: str, metadata: bytes, on_done: OnDone) -> None:
        """Once for each agent, or again after it was removed: twice would invalidate what moves to it."""
        ...

    def remove_peer(self, agent: str) -> None:
        """Forget a peer, gone or not, once nothing moves to or from it."""
        ...

    def expect(self, num_leaves: int) -> None:
        """Set how many grants and pins are out; while any is, peers may be at work on this memory."""
        ...
