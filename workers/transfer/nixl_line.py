"""A line: one NIXL agent over a pool, and a second one that takes half of what is written.

```
 post ─┬─ front half ─► this thread, first agent ──────┐
       └─ rear half ──► a second thread, second agent ─┴─► done when both are
```

Over shared memory a post is copied within the call, and one thread copies through the system no faster than
three quarters of a memcpy; two, where a core is free, at 0.6 to 1.1. The second is not waited for when more
is to be posted. What is read is not shared: most of it is read once by a pair of workers, in a hand-over, and
the first read of a peer takes 1.7 times as long where a second agent has to be connected, too.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from proto.cards import RankAgent
from proto.errors import KvmeshError, NothingPosted
from proto.layout import PoolLayout
from workers.transfer.copy_plan import Copies
from workers.transfer.nixl_agent import NixlAgent, TransferState
from workers.transfer.second_hand import SecondHand
from workers.transfer.transfers import Operation

MIN_SHARED_BYTES: Final = 2 * 2**20
"""Less is copied before a second thread has woken and the two are together again."""


@dataclass(slots=True)
class LinePosted:
    """What `post` started. `handle` is of the front half; `rear` is settled by the second hand. `fault` is of
    the front half, if it failed while the rear one may move."""

    handle: Any = None
    is_front_moving: bool = False
    rear: "Future[None] | None" = None
    fault: KvmeshError | None = None

    @property
    def is_rear_moving(self) -> bool:
        return self.rear is not None and not self.rear.done()


class NixlLine:
    """As `NixlAgent`, whose methods it has; called from one thread (see `transfer_thread`)."""

    def __init__(self, agent: str, pool: PoolLayout, parameters: Mapping[str, str] | None = None) -> None:
        self._pool = pool
        self._first = NixlAgent(agent, pool, parameters)
        self._second = SecondHand(NixlAgent(f"{agent}.2", pool, parameters))

    def open(self, wake: Callable[[], None]) -> RankAgent:
        """See `NixlAgent` and `KvTransport`."""
        self._second.set_wake(wake)
        return self._first.open()

    def close(self) -> None:
        """See `NixlAgent`; when nothing moves any more."""
        self._second.close()
        self._first.close()

    def add_peer(self, agent: str, metadata: bytes) -> None:
        """See `NixlAgent`."""
        self._first.add_peer(metadata)
        self._second.learn_peer(agent, metadata)

    def remove_peer(self, agent: str) -> None:
        """See `NixlAgent`."""
        self._second.forget_peer(agent)
        self._first.remove_peer(agent)

    def post(self, operation: Operation, agent: str, copies: Copies, remote_device: str) -> LinePosted:
        """Start moving `copies`; for `check` and `release`.

        Raises:
            NothingPosted: the peer is unknown, or nothing can be sent to it any more.
            PeerGone: it failed in the midst; some of it may land.
        """
        posted = LinePosted()
        if self._is_shared(operation, copies, remote_device):
            front, behind = _halves(copies)
            posted.rear = self._second.try_post(operation, agent, behind, remote_device)
            copies = copies if posted.rear is None else front
        try:
            posted.handle = self._first.post(operation, agent, copies, remote_device)
        except KvmeshError as error:
            if posted.rear is None:
                raise
            posted.fault = error
        else:
            posted.is_front_moving = True
        return posted

    def _is_shared(self, operation: Operation, copies: Copies, remote_device: str) -> bool:
        is_of_host = self._pool.device == remote_device == "cpu"
        is_much = copies.num_bytes >= MIN_SHARED_BYTES and len(copies) > 1
        return operation == "WRITE" and is_of_host and is_much

    def check(self, agent: str, posted: LinePosted) -> TransferState:
        """See `NixlAgent`. What failed in one half is told once the other has ended, too; as `NothingPosted`,
        if that is so of all that failed.

        Raises:
            PeerGone: it failed.
        """
        if posted.is_front_moving:
            self._check_front(agent, posted)
        if posted.is_front_moving or posted.is_rear_moving:
            return TransferState.MOVING
        rear_fault = posted.rear.exception() if posted.rear is not None else None
        faults = [fault for fault in (posted.fault, rear_fault) if fault is not None]
        if faults:
            raise min(faults, key=lambda fault: isinstance(fault, NothingPosted))
        return TransferState.DONE

    def _check_front(self, agent: str, posted: LinePosted) -> None:
        try:
            posted.is_front_moving = self._first.check(agent, posted.handle) is TransferState.MOVING
        except KvmeshError as error:
            posted.is_front_moving = False
            posted.fault = error

    def release(self, posted: LinePosted) -> None:
        """See `NixlAgent`."""
        if posted.handle is not None:
            self._first.release(posted.handle)

    def notify(self, agent: str, notice: bytes) -> None:
        """See `NixlAgent`."""
        self._first.notify(agent, notice)

    def take_notices(self) -> list[bytes]:
        """See `NixlAgent`."""
        return self._first.take_notices()


def _halves(copies: Copies) -> tuple[Copies, Copies]:
    """About as many bytes each."""
    ends_X = np.cumsum(copies.table[:, 2])
    middle = int(np.searchsorted(ends_X, copies.num_bytes // 2)) + 1
    return Copies(copies.table[:middle]), Copies(copies.table[middle:])
