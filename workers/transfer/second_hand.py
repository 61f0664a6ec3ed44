"""The second hand of a line: an agent over the same pool, and the thread that everything of it happens in.

```
 transfer thread ──► offers ──► second thread: take ─ post ─ check ─► the portion has ended
                                                                      and, of the last one, `wake`
```

It goes on with its portions while the transfer thread tells of what ended and takes what waits, so that there
is copying all the time.
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from proto.errors import InternalFault, PeerGone
from workers.transfer.cores import current_core, kept_off
from workers.transfer.hand import Hand
from workers.transfer.looks import IDLE_LOOK_S, POLL_S
from workers.transfer.nixl_agent import NixlAgent
from workers.transfer.shared_post import SharedPost

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Offer:
    """`core` is where the first hand copies."""

    post: SharedPost
    core: int


@dataclass(frozen=True, slots=True)
class _Farewell:
    agent: str


class SecondHand:
    """Opened when it is first needed. Peers know nothing of it: it writes, and is told nothing.

    Its methods are called from one thread; `wake` is called in another one when a post has ended here.
    """

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self._hand = Hand(agent)
        self._wake: Callable[[], None] = lambda: None
        self._orders: queue.SimpleQueue[_Offer | _Farewell | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="transfer-2", daemon=True)
        self._metadata: dict[str, bytes] = {}
        self._met: set[str] = set()
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

    def try_open(self) -> bool:
        """Whether there is a second agent to be had here."""
        if self._is_open or self._is_refused:
            return self._is_open
        try:
            self._agent.open()
        except InternalFault as error:  # as where there is one port to listen on
            self._is_refused = True
            log.warning("transfers use one thread", extra={"reason": str(error)})
            return False
        self._is_open = True
        self._thread.start()
        return True

    def offer(self, post: SharedPost) -> None:
        """It may take of it what it can; nobody waits for that."""
        self._orders.put(_Offer(post, current_core()))

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
            for post, handles in self._hand.moving.items():
                for _ in handles:
                    post.end(InternalFault(reason="the second thread has ended"))

    def _take_order(self) -> bool:
        """Carries out the next one, if one comes before the next look is due; False: the end."""
        try:
            order = self._orders.get(timeout=POLL_S if self._hand.moving else IDLE_LOOK_S)
        except queue.Empty:
            return True
        if isinstance(order, _Offer):
            self._carry(order)
        elif order is not None:
            self._leave(order.agent)
        return order is not None

    def _carry(self, offer: _Offer) -> None:
        if self._has_met(offer.post.agent):
            with kept_off(offer.core):
                self._hand.carry(offer.post)
            self._tell_if_over(offer.post)

    def _has_met(self, agent: str) -> bool:
        """What it cannot reach is left to the first hand, which hears why."""
        metadata = self._metadata.get(agent)
        if agent not in self._met and metadata is not None:
            try:
                self._agent.add_peer(metadata)
                self._met.add(agent)
            except PeerGone as error:
                log.info("a peer cannot be met by the second thread", extra={"reason": str(error)})
        return agent in self._met

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
        for post in list(self._hand.moving):
            self._hand.look_at(post)
            self._tell_if_over(post)
        self._agent.take_notices()

    def _tell_if_over(self, post: SharedPost) -> None:
        if post.is_over:
            self._wake()
