"""Reads of another worker's blocks, pinned there, into an awaiting sequence here."""

from collections.abc import Sequence

from proto.control import Unpin, Unpinned
from proto.errors import GrantRefused, KvmeshError, PinLost
from workers.control_client import ControlClient
from workers.engine.engine import Engine
from workers.transfer.own_memory import OwnMemory
from workers.transfer.peers import Peer
from workers.transfer.pull import Pull

ASK_TIMEOUT_S = 2.0


class PinnedReads:
    """What every read works with. A read that fails leaves the sequence as it was."""

    def __init__(self, engine: Engine, control: ControlClient, memory: OwnMemory) -> None:
        self._engine = engine
        self._control = control
        self._memory = memory

    async def read(self, peer: Peer, pin: str, theirs: Sequence[int], sequence: str, end: int) -> None:
        """`sequence` gets the KV of its tokens up to `end` from `theirs`, and goes on awaiting; the pin ends.

        Blocks that a read is still writing into when this ends come back once it has ended.

        Raises:
            TransferFault: no room for it, the read failed, or the pin did not hold until its end.
            DeadlineExceeded: the read is stuck.
        """
        try:
            ours = self._engine.set_aside(sequence, end)
        except GrantRefused:
            await self.unpin(peer.card.worker, pin)
            raise
        pull = Pull(self._memory, on_late_end=lambda: self._engine.give_back(ours))
        has_landed = False
        try:
            if not await self._has_read(pull, peer, pin, theirs, ours):
                raise PinLost(pin=pin)
            has_landed = self._engine.lay(sequence, ours, end)
        finally:
            if not has_landed and not pull.is_left:
                self._engine.give_back(ours)
        if not has_landed:
            raise GrantRefused(job=sequence, reason="it was cancelled")

    async def _has_read(
        self, pull: Pull, peer: Peer, pin: str, theirs: Sequence[int], ours: Sequence[int]
    ) -> bool:
        """Whether what was read is whole."""
        is_whole = len(theirs) == len(ours) and all(0 <= block < peer.num_blocks for block in theirs)
        try:
            if is_whole:
                await pull.run(peer, theirs, ours)
        finally:
            was_held = await self.unpin(peer.card.worker, pin)
        return is_whole and was_held

    async def unpin(self, owner: str, pin: str) -> bool:
        """Whether the pin held until now. An owner that does not hear it lets the pin expire."""
        if not pin:
            return False
        try:
            return (await self._control.ask(owner, Unpin(pin), Unpinned, ASK_TIMEOUT_S)).was_held
        except KvmeshError:
            return False
