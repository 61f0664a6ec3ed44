"""The writes of one grant: KV goes out in groups of layers while the next ones compute.

```
 compute   [ layers 0-5 ][ layers 6-11 ][ … ][ last layers ]
 on wire                  [ layers 0-5 ][ layers 6-11 ][ … ][ last ][ Landing ]
```

The landing notice follows once every write lies at the target, so its owner need not count pieces.
"""

import asyncio
import threading
from collections.abc import Sequence

from proto.codec import encode
from proto.control import Granted
from proto.errors import KvmeshError
from proto.jobs import Landing
from proto.layout import BlockPair, LayerRange, PoolLayout, plan_copies
from workers.transfer.outcome import Outcome
from workers.transfer.peers import Peer
from workers.transfer.transfer_thread import Transfer, TransferThread


class Push:
    """The outgoing side of a grant. Pieces come from any thread; `land` and `stop` belong to the loop.

    After `stop` or a failed write nothing more is posted.
    """

    def __init__(self, grant: Granted, peer: Peer, own: PoolLayout, transfers: TransferThread) -> None:
        self._grant = grant
        self._peer = peer
        self._own = own
        self._transfers = transfers
        self._lock = threading.Lock()
        self._on_way = 0
        self._num_bytes = 0
        self._fault: KvmeshError | None = None
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._progress = asyncio.Event()

    def write(self, start: int, end: int, blocks: Sequence[int], layers: LayerRange) -> None:
        """Send these layers of tokens `start` to `end`, which lie in `blocks`; what the owner has is skipped.

        `start` is a multiple of the block size.
        """
        pairs = self._pairs(start, end, blocks)
        copies = plan_copies(self._own, self._peer.rank.pool, pairs, layers)
        if not copies:
            return
        with self._lock:
            if self._is_stopped or self._fault is not None:
                return
            self._on_way += 1
            self._num_bytes += sum(copy.num_bytes for copy in copies)
        self._transfers.submit(
            Transfer(
                "WRITE",
                self._peer.rank.agent,
                copies,
                self._peer.rank.pool.device,
                self._may_start,
                self._on_done,
            )
        )

    async def land(self) -> None:
        """Wait until every write lies at the target, then tell the owner.

        Raises:
            TransferFault: a write or the notice failed, or the push was stopped.
        """
        await self.wait_settled()
        if self._fault is not None:
            raise self._fault
        notice = encode(Landing(self._grant.grant, self._num_bytes))
        told = Outcome(self._loop)
        self._transfers.notify(self._peer.rank.agent, notice, told.settle)
        fault = await told.wait()
        if fault is not None:
            raise fault

    def stop(self) -> None:
        """Post nothing more; what is on its way goes on until `wait_settled`."""
        with self._lock:
            self._is_stopped = True

    async def wait_settled(self) -> None:
        """Until nothing is on its way. A write to a stopped process may take until that process goes on."""
        while self._on_way:
            self._progress.clear()
            await self._progress.wait()

    def _pairs(self, start: int, end: int, blocks: Sequence[int]) -> list[BlockPair]:
        size = self._own.block_size
        first = start // size
        wanted = range(self._grant.start // size, -(-min(end, self._grant.end) // size))
        return [
            BlockPair(block, self._grant.blocks[number - wanted.start])
            for number, block in enumerate(blocks, first)
            if number in wanted
        ]

    def _may_start(self) -> bool:
        with self._lock:
            return not self._is_stopped and self._fault is None

    def _on_done(self, fault: KvmeshError | None) -> None:
        with self._lock:
            self._on_way -= 1
            self._fault = self._fault or fault
        self._loop.call_soon_threadsafe(self._progress.set)
