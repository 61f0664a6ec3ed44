"""A line: one NIXL agent over a pool, and a second one that takes half of what is written.

```
 post ─┬─ front half ─► this thread, first agent ──────┐
       └─ rear half ──► a second thread, second agent ─┴─► done when both are
```

Over shared memory a post is copied within the call, and one thread copies through the system no faster than
three quarters of a memcpy; two, where a core is free, at 0.8 to 1.1. What is read is not shared: most of it
is read once by a pair of workers, in a hand-over, and the first read of a peer takes 1.7 times as long where
a second agent has to be connected, too.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from proto.cards import RankAgent
from proto.errors import KvmeshError
from proto.layout import PoolLayout
from workers.transfer.copy_plan import Copies
from workers.transfer.nixl_agent import NixlAgent, TransferState
from workers.transfer.second_hand import SecondHand
from workers.transfer.transfers import Operation

MIN_SHARED_BYTES: Final = 2 * 2**20
"""Less is copied before a second thread has woken and the two are together again."""


class _Part(NamedTuple):
    agent: NixlAgent
    handle: Any


@dataclass
class LinePosted:
    """What `post` started. `moving` are parts that have not ended, as far as is known; `fault` is of one that
    failed while others may move."""

    parts: list[_Part] = field(default_factory=list)
    moving: list[_Part] = field(default_factory=list)
    fault: KvmeshError | None = None

    def add(self, part: _Part) -> None:
        self.parts.append(part)
        self.moving.append(part)


class NixlLine:
    """As `NixlAgent`, whose methods it has; called from one thread (see `transfer_thread`)."""

    def __init__(self, agent: str, pool: PoolLayout, parameters: Mapping[str, str] | None = None) -> None:
        self._pool = pool
        self._first = NixlAgent(agent, pool, parameters)
        self._second = SecondHand(NixlAgent(f"{agent}.2", pool, parameters))

    def open(self) -> RankAgent:
        """See `NixlAgent`."""
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
        try:
            self._second.forget_peer(agent)
        finally:
            self._first.remove_peer(agent)

    def post(self, operation: Operation, agent: str, copies: Copies, remote_device: str) -> LinePosted:
        """Start moving `copies`; for `check` and `release`.

        Raises:
            PeerGone: nothing of it was started: the peer is unknown or its process has ended.
        """
        posted, rear = LinePosted(), None
        if self._is_shared(operation, copies, remote_device):
            front, behind = _halves(copies)
            rear = self._second.try_post(operation, agent, behind, remote_device)
            copies = copies if rear is None else front
        try:
            posted.add(_Part(self._first, self._first.post(operation, agent, copies, remote_device)))
        except KvmeshError as error:
            posted.fault = error
        if rear is not None:
            self._add_rear(posted, rear)
        if posted.fault is not None and not posted.parts:
            raise posted.fault
        return posted

    def _is_shared(self, operation: Operation, copies: Copies, remote_device: str) -> bool:
        is_of_host = self._pool.device == remote_device == "cpu"
        is_much = copies.num_bytes >= MIN_SHARED_BYTES and len(copies) > 1
        return operation == "WRITE" and is_of_host and is_much

    def _add_rear(self, posted: LinePosted, rear: "Future[Any]") -> None:
        try:
            posted.add(_Part(self._second.agent, rear.result()))
        except KvmeshError as error:
            posted.fault = posted.fault or error

    def check(self, agent: str, posted: LinePosted) -> TransferState:
        """See `NixlAgent`. What failed in one part is told once the others have ended, too.

        Raises:
            PeerGone: it failed.
        """
        posted.moving = [part for part in posted.moving if not self._is_over(part, agent, posted)]
        if posted.moving:
            return TransferState.MOVING
        if posted.fault is not None:
            raise posted.fault
        return TransferState.DONE

    def _is_over(self, part: _Part, agent: str, posted: LinePosted) -> bool:
        try:
            return part.agent.check(agent, part.handle) is TransferState.DONE
        except KvmeshError as error:
            posted.fault = posted.fault or error
            return True

    def release(self, posted: LinePosted) -> None:
        """See `NixlAgent`."""
        for part in posted.parts:
            part.agent.release(part.handle)

    def notify(self, agent: str, notice: bytes) -> None:
        """See `NixlAgent`."""
        self._first.notify(agent, notice)

    def take_notices(self) -> list[bytes]:
        """See `NixlAgent`."""
        self._second.look()
        return self._first.take_notices()


def _halves(copies: Copies) -> tuple[Copies, Copies]:
    """About as many bytes each."""
    ends_X = np.cumsum(copies.table[:, 2])
    middle = int(np.searchsorted(ends_X, copies.num_bytes // 2)) + 1
    return Copies(copies.table[:middle]), Copies(copies.table[middle:])
