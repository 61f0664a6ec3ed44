"""A second agent over the same pool, and the thread that posts with it."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from proto.errors import InternalFault, KvmeshError, PeerGone
from workers.transfer.copy_plan import Copies
from workers.transfer.nixl_agent import NixlAgent
from workers.transfer.transfers import Operation

log = logging.getLogger(__name__)


class _Order(NamedTuple):
    post: Callable[[], Any]
    handle: "Future[Any]"


class SecondHand:
    """Opened when it is first needed. Belongs to one thread, which touches `agent` only while nothing is
    being posted with it. Peers know nothing of it: it writes and reads, and is told nothing.
    """

    def __init__(self, agent: NixlAgent) -> None:
        self.agent = agent
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="transfer-2", daemon=True)
        self._metadata: dict[str, bytes] = {}
        self._met: set[str] = set()
        self._is_refused = False

    def learn_peer(self, agent: str, metadata: bytes) -> None:
        """A peer that may be posted to from now on."""
        self._metadata[agent] = metadata

    def forget_peer(self, agent: str) -> None:
        """
        Raises:
            PeerGone: the library has no such peer.
        """
        self._metadata.pop(agent, None)
        if agent in self._met:
            self._met.discard(agent)
            self.agent.remove_peer(agent)

    def try_post(
        self, operation: Operation, agent: str, copies: Copies, remote_device: str
    ) -> "Future[Any] | None":
        """The handle to be, or the `PeerGone` of it. None: there is no second agent to be had here."""
        if not self._is_open and not self._try_open():
            return None
        order = _Order(lambda: self._post(operation, agent, copies, remote_device), Future())
        self._orders.put(order)
        return order.handle

    @property
    def _is_open(self) -> bool:
        return self._thread.is_alive()

    def _try_open(self) -> bool:
        if self._is_refused:
            return False
        try:
            self.agent.open()
        except InternalFault as error:  # as where there is one port to listen on
            self._is_refused = True
            log.warning("transfers of small pieces use one thread", extra={"reason": str(error)})
            return False
        self._thread.start()
        return True

    def _post(self, operation: Operation, agent: str, copies: Copies, remote_device: str) -> Any:
        metadata = self._metadata.get(agent)
        if metadata is None:
            raise PeerGone(peer=agent, reason="it has not been met")
        if agent not in self._met:
            self.agent.add_peer(metadata)
            self._met.add(agent)
        return self.agent.post(operation, agent, copies, remote_device)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                order.handle.set_result(order.post())
            except KvmeshError as error:
                order.handle.set_exception(error)
            finally:
                if not order.handle.done():
                    order.handle.set_exception(InternalFault(reason="the second thread has ended"))

    def look(self) -> None:
        """Drives what moves, and lets peers say goodbye."""
        if self._is_open:
            self.agent.take_notices()

    def close(self) -> None:
        """When nothing moves any more."""
        if self._is_open:
            self._orders.put(None)
            self._thread.join()
            self.agent.close()
