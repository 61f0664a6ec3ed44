"""The contract of what the transfer thread drives: a rank's memory, registered, and posts to peers."""

from collections.abc import Callable
from typing import Any, Protocol

from proto.cards import RankAgent
from workers.transfer.copy_plan import Copies
from workers.transfer.nixl_agent import TransferState
from workers.transfer.transfers import Operation


class KvTransport(Protocol):
    """Called from one thread. What `try_post` gives is its own: nobody else looks into it."""

    def open(self, wake: Callable[[], None]) -> RankAgent:
        """Register the memory; how peers reach it. `wake` is called, in any thread, when a look is worth it
        before it would be due.

        Raises:
            InvalidSetting: the library has no such parameter.
            InternalFault: it refuses the memory.
        """
        ...

    def close(self) -> None:
        """When nothing moves any more."""
        ...

    def add_peer(self, agent: str, metadata: bytes) -> None:
        """
        Raises:
            PeerGone: the peer cannot be reached.
        """
        ...

    def remove_peer(self, agent: str) -> None:
        """
        Raises:
            PeerGone: it was gone already.
        """
        ...

    def try_post(self, operation: Operation, agent: str, copies: Copies, remote_device: str) -> Any:
        """Start moving `copies`, between the own pool and the peer's; for `check` and `release`. None: there
        is no room for it now, and nothing was started.

        Raises:
            NothingPosted: the peer is unknown, or nothing can be sent to it any more.
            PeerGone: it failed in the midst; some of it may land.
            InternalFault: nothing of it was started: a copy within the rank failed.
        """
        ...

    def check(self, agent: str, posted: Any) -> TransferState:
        """How far it is. `DONE` means that the bytes lie at the target.

        Raises:
            PeerGone: it failed, and moves no more as far as can be known; not at all, if `NothingPosted`.
            InternalFault: likewise, by our own fault: a copy within the rank, or a thread that has ended.
        """
        ...

    def note_stuck(self, posted: Any) -> None:
        """It takes longer than any should, and goes on: what is posted to its peer from now on goes another
        way, if there is one."""
        ...

    def release(self, posted: Any) -> None:
        """Of what is over. Never call it while something moves."""
        ...

    def notify(self, agent: str, notice: bytes) -> None:
        """Send a notice to a peer, after all that was checked `DONE` before.

        Raises:
            PeerGone: the peer's process has ended.
        """
        ...

    def take_notices(self) -> list[bytes]:
        """The notices that have come since the last call. Also drives what moves."""
        ...
