"""The read of another worker's blocks under its pin."""

import asyncio
from collections.abc import Callable, Sequence

from proto.errors import DeadlineExceeded, KvmeshError, PeerGone
from workers.transfer.copy_plan import BlockPairs, plan_copies
from workers.transfer.own_memory import OwnMemory
from workers.transfer.peers import Peer
from workers.transfer.rank_routes import RankRoute, plan_routes
from workers.transfer.transfers import Transfer


class Pull:
    """One read into blocks of ours, by every rank of what it holds: `run` once, on the loop.

    Whoever stops waiting does not stop the read. It has our blocks until it has ended: they are the caller's
    again when `run` returns, unless it `is_left`; then they are when `on_late_end` is called, which may have
    been by the time that one looks.
    """

    def __init__(self, own: OwnMemory, on_late_end: Callable[[], None]) -> None:
        self._own = own
        self._on_late_end = on_late_end
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Future[KvmeshError | None] = self._loop.create_future()
        self._num_on_way = 0
        self.is_left = False
        self._fault: KvmeshError | None = None

    @property
    def is_on_way(self) -> bool:
        """It may still write into our blocks."""
        return self._num_on_way > 0

    async def run(self, peer: Peer, theirs: Sequence[int], ours: Sequence[int]) -> None:
        """Read their blocks into ours, block by block in the order given.

        The caller holds a pin on theirs and asks after the return whether it held throughout.

        Cancel: leaves it on its way.

        Raises:
            TransferFault: the read failed; our blocks hold nothing of use.
            DeadlineExceeded: it takes longer than any should, and is still on its way.
        """
        routes = plan_routes(peer.pools, self._own.pools)
        planned = [self._plan(route, peer, BlockPairs(theirs, ours)) for route in routes]
        self._num_on_way = len(planned)
        for route, transfer in zip(routes, planned, strict=True):
            self._own.ranks[route.target].transfers.submit(transfer)
        try:
            fault = await self._told
        finally:
            self.is_left = self.is_on_way
        if fault is not None:
            raise fault

    def _plan(self, route: RankRoute, peer: Peer, blocks: BlockPairs) -> Transfer:
        source, own, name = peer.card.ranks[route.source], self._own.pools[route.target], peer.card.worker
        copies = plan_copies(source.pool, own, blocks, route.layers, route.heads)

        def on_refused() -> None:
            on_done(PeerGone(peer=name, reason="transfers have ended"))

        def on_done(fault: KvmeshError | None) -> None:
            self._loop.call_soon_threadsafe(self._end_one, fault)

        def on_stalled(limit_s: float) -> None:
            fault = DeadlineExceeded(what=f"a read from {name}", limit_s=limit_s)
            self._loop.call_soon_threadsafe(self._tell, fault)

        agent, device = source.agent, source.pool.device
        return Transfer("READ", agent, copies, device, lambda: True, on_refused, on_done, on_stalled)

    def _end_one(self, fault: KvmeshError | None) -> None:
        """What failed at one rank is told once no other rank writes into our blocks any more."""
        self._num_on_way -= 1
        self._fault = self._fault or fault
        if self.is_on_way:
            return
        if self.is_left:
            self._on_late_end()
        else:
            self._tell(self._fault)

    def _tell(self, fault: KvmeshError | None) -> None:
        if not self._told.done():
            self._told.set_result(fault)
