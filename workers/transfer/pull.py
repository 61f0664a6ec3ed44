"""The read of another worker's blocks under its pin."""

import asyncio
from collections.abc import Callable, Sequence

from proto.errors import DeadlineExceeded, KvmeshError, PeerGone
from proto.layout import LayerRange, PoolLayout
from workers.transfer.copy_plan import BlockPair, plan_copies
from workers.transfer.peers import Peer
from workers.transfer.transfers import Transfer, Transfers


class Pull:
    """One read into blocks of ours: `run` once, on the loop.

    Whoever stops waiting does not stop the read. `is_on_way`: it may still write into our blocks; should it
    end after `run` has, `on_late_end` is called.
    """

    def __init__(self, own: PoolLayout, transfers: Transfers, on_late_end: Callable[[], None]) -> None:
        self._own = own
        self._transfers = transfers
        self._on_late_end = on_late_end
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Future[KvmeshError | None] = self._loop.create_future()
        self.is_on_way = False

    async def run(self, peer: Peer, theirs: Sequence[int], ours: Sequence[int]) -> None:
        """Read their blocks into ours, block by block in the order given.

        The caller holds a pin on theirs and asks after the return whether it held throughout.

        Cancel: leaves it on its way.

        Raises:
            TransferFault: the read failed; our blocks hold nothing of use.
            DeadlineExceeded: it takes longer than any should, and is still on its way.
        """
        self.is_on_way = True
        self._transfers.submit(self._plan(peer, theirs, ours))
        fault = await self._told
        if fault is not None:
            raise fault

    def _plan(self, peer: Peer, theirs: Sequence[int], ours: Sequence[int]) -> Transfer:
        own, name = self._own, peer.card.worker
        pairs = [BlockPair(*pair) for pair in zip(theirs, ours, strict=True)]
        copies = plan_copies(peer.rank.pool, own, pairs, LayerRange(own.first_layer, own.num_layers))

        def on_refused() -> None:
            on_done(PeerGone(peer=name, reason="transfers have ended"))

        def on_done(fault: KvmeshError | None) -> None:
            self._loop.call_soon_threadsafe(self._end, fault)

        def on_stalled(limit_s: float) -> None:
            fault = DeadlineExceeded(what=f"a read from {name}", limit_s=limit_s)
            self._loop.call_soon_threadsafe(self._tell, fault)

        agent, device = peer.rank.agent, peer.rank.pool.device
        return Transfer("READ", agent, copies, device, lambda: True, on_refused, on_done, on_stalled)

    def _end(self, fault: KvmeshError | None) -> None:
        self.is_on_way = False
        if self._told.done():
            self._on_late_end()
        else:
            self._told.set_result(fault)

    def _tell(self, fault: KvmeshError) -> None:
        if not self._told.done():
            self._told.set_result(fault)
