"""A line: one NIXL agent over a pool, and a second one that shares what is written.

```
 post ─┬─► this thread, first agent ───────┐ each takes portions
       └─► a second thread, second agent ──┴─► done when none is left and all have ended
```

Over shared memory a post is copied within the call, and one thread copies through the system at 0.64 to 0.87
of a memcpy; two, where a core is free, at 1.0 to 1.2. The second is not waited for, neither to begin nor when
more is to be posted. What is read is not shared: most of it is read once by a pair of workers, in a
hand-over, and the first read of a peer takes 1.7 times as long where a second agent has to be connected, too.
"""

from collections.abc import Callable, Mapping
from typing import Final

from proto.cards import RankAgent
from proto.layout import PoolLayout
from workers.transfer.copy_plan import Copies
from workers.transfer.hand import Hand
from workers.transfer.nixl_agent import NixlAgent, TransferState
from workers.transfer.second_hand import SecondHand
from workers.transfer.shared_post import SharedPost
from workers.transfer.transfers import Operation

MIN_SHARED_BYTES: Final = 8 * 2**20
"""Less is copied before a second thread has woken and the two are together again."""

MIN_PORTION_BYTES: Final = 4 * 2**20
"""A post of less costs too much beside the copying."""


class NixlLine:
    """As `NixlAgent`, whose methods it has; called from one thread (see `transfer_thread`)."""

    def __init__(self, agent: str, pool: PoolLayout, parameters: Mapping[str, str] | None = None) -> None:
        self._pool = pool
        self._agent = NixlAgent(agent, pool, parameters)
        self._first = Hand(self._agent)
        self._second = SecondHand(NixlAgent(f"{agent}.2", pool, parameters))

    def open(self, wake: Callable[[], None]) -> RankAgent:
        """See `NixlAgent` and `KvTransport`."""
        self._second.set_wake(wake)
        return self._agent.open()

    def close(self) -> None:
        """See `NixlAgent`; when nothing moves any more."""
        self._second.close()
        self._agent.close()

    def add_peer(self, agent: str, metadata: bytes) -> None:
        """See `NixlAgent`."""
        self._agent.add_peer(metadata)
        self._second.learn_peer(agent, metadata)

    def remove_peer(self, agent: str) -> None:
        """See `NixlAgent`."""
        self._second.forget_peer(agent)
        self._agent.remove_peer(agent)

    def post(self, operation: Operation, agent: str, copies: Copies, remote_device: str) -> SharedPost:
        """Start moving `copies`; for `check`.

        Raises:
            NothingPosted: the peer is unknown, or nothing can be sent to it any more.
            PeerGone: it failed in the midst; some of it may land.
        """
        is_shared = self._may_share(operation, copies, remote_device) and self._second.try_open()
        portion_bytes = MIN_PORTION_BYTES if is_shared else copies.num_bytes
        post = SharedPost(operation, agent, copies, remote_device, portion_bytes)
        if is_shared:
            self._second.offer(post)
        self._first.carry(post)
        if post.is_over and post.fault is not None:
            raise post.fault
        return post

    def _may_share(self, operation: Operation, copies: Copies, remote_device: str) -> bool:
        is_of_host = self._pool.device == remote_device == "cpu"
        is_much = copies.num_bytes >= MIN_SHARED_BYTES and len(copies) > 1
        return operation == "WRITE" and is_of_host and is_much

    def check(self, post: SharedPost) -> TransferState:
        """How far it is. What failed of it is told once nothing of it moves any more; as `NothingPosted`, if
        that is so of all that failed.

        Raises:
            PeerGone: it failed.
        """
        self._first.look_at(post)
        if not post.is_over:
            return TransferState.MOVING
        if post.fault is not None:
            raise post.fault
        return TransferState.DONE

    def notify(self, agent: str, notice: bytes) -> None:
        """See `NixlAgent`."""
        self._agent.notify(agent, notice)

    def take_notices(self) -> list[bytes]:
        """See `NixlAgent`."""
        return self._agent.take_notices()
