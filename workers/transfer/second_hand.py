"""A second agent over the same pool, and the thread that everything of it happens in.

```
 transfer thread ──► orders ──► second thread: post ─ check ─ release ──► the half is settled, and `wake`
```

It goes on with its halves while the transfer thread tells of what ended and takes what waits, so that there
is copying all the time.
"""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from proto.errors import InternalFault, KvmeshError, NothingPosted, PeerGone
from workers.transfer.copy_plan import Copies
from workers.transfer.looks import IDLE_LOOK_S, POLL_S
from workers.transfer.nixl_agent import NixlAgent, TransferState
from workers.transfer.transfers import Operation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Half:
    """Settled with None once its bytes lie at the target, or with what went wrong."""

    operation: Operation
    agent: str
    copies: Copies
    remote_device: str
    over: "Future[None]"


@dataclass(frozen=True, slots=True)
class _Farewell:
    agent: str


class SecondHand:
    """Opened when it is first needed. Peers know nothing of it: it writes, and is told nothing.

    Its methods are called from one thread; `wake` is called in another one whenever a half is settled.
    """

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self._wake: Callable[[], None] = lambda: None
        self._orders: queue.SimpleQueue[_Half | _Farewell | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="transfer-2", daemon=True)
        self._metadata: dict[str, bytes] = {}
        self._met: set[str] = set()
        self._moving: list[tuple[_Half, Any]] = []
        self._is_open = False
        self._is_refused = False

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Before the first post."""
        self._wake = wake

    def learn_peer(self, agent: str, metadata: bytes) -> None:
        """A peer that may be posted to from now on."""
        self._metadata[agent] = metadata

    def forget_peer(self, agent: str) -> None:
        """After what was posted to it has ended."""
        self._metadata.pop(agent, None)
        self._orders.put(_Farewell(agent))

    def try_post(
        self, operation: Operation, agent: str, copies: Copies, remote_device: str
    ) -> "Future[None] | None":
        """When it is over, or the `PeerGone` of it. None: there is no second agent to be had here."""
        if not self._is_open and not self._try_open():
            return None
        half = _Half(operation, agent, copies, remote_device, Future())
        self._orders.put(half)
        if not self._thread.is_alive():
            self._refuse_rest()
        return half.over

    def _try_open(self) -> bool:
        if self._is_refused:
            return False
        try:
            self._agent.open()
        except InternalFault as error:  # as where there is one port to listen on
            self._is_refused = True
            log.warning("transfers use one thread", extra={"reason": str(error)})
            return False
        self._is_open = True
        self._thread.start()
        return True

    def close(self) -> None:
        """When nothing moves any more."""
        if self._is_open:
            self._orders.put(None)
            self._thread.join()
            self._agent.close()

    def _run(self) -> None:
        try:
            while self._take_order():
                self._look()
        finally:
            for half, _ in self._moving:
                self._settle(half, _ended())
            self._refuse_rest()

    def _take_order(self) -> bool:
        """Carries out the next one, if one comes before the next look is due; False: the end."""
        try:
            order = self._orders.get(timeout=POLL_S if self._moving else IDLE_LOOK_S)
        except queue.Empty:
            return True
        if isinstance(order, _Half):
            self._start(order)
        elif order is not None:
            self._leave(order.agent)
        return order is not None

    def _start(self, half: _Half) -> None:
        try:
            self._meet(half.agent)
            handle = self._agent.post(half.operation, half.agent, half.copies, half.remote_device)
        except KvmeshError as error:
            self._settle(half, error)
        else:
            self._moving.append((half, handle))

    def _meet(self, agent: str) -> None:
        """
        Raises:
            PeerGone: it cannot be reached.
        """
        metadata = self._metadata.get(agent)
        if metadata is None:
            raise NothingPosted(peer=agent, reason="it has not been met")
        if agent not in self._met:
            self._agent.add_peer(metadata)
            self._met.add(agent)

    def _leave(self, agent: str) -> None:
        if agent not in self._met:
            return
        self._met.discard(agent)
        try:
            self._agent.remove_peer(agent)
        except PeerGone as error:
            log.info("a former peer was gone already", extra={"reason": str(error)})

    def _look(self) -> None:
        """Drives what moves, and lets peers say goodbye."""
        self._moving = [(half, handle) for half, handle in self._moving if not self._is_over(half, handle)]
        self._agent.take_notices()

    def _is_over(self, half: _Half, handle: Any) -> bool:
        fault: KvmeshError | None = None
        try:
            if self._agent.check(half.agent, handle) is TransferState.MOVING:
                return False
        except KvmeshError as error:
            fault = error
        self._agent.release(handle)
        self._settle(half, fault)
        return True

    def _settle(self, half: _Half, fault: KvmeshError | None) -> None:
        if fault is None:
            half.over.set_result(None)
        else:
            half.over.set_exception(fault)
        self._wake()

    def _refuse_rest(self) -> None:
        """Whoever takes a half refuses it, so each is refused once."""
        try:
            while True:
                order = self._orders.get_nowait()
                if isinstance(order, _Half):
                    self._settle(order, _ended())
        except queue.Empty:
            return


def _ended() -> InternalFault:
    return InternalFault(reason="the second thread has ended")
