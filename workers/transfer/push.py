"""The writes of one grant: KV goes out in groups of layers while the next ones compute.

```
 compute   [ layers 0-5 ][ layers 6-11 ][ … ][ last layers ]
 on wire                  [ layers 0-5 ][ layers 6-11 ][ … ][ last ][ Landing ]
```

The landing notice follows once every write lies at the target, so its owner need not count pieces.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from proto.codec import encode
from proto.control import Granted
from proto.errors import InternalFault, KvmeshError
from proto.jobs import Landing
from proto.layout import BlockPair, LayerRange, PoolLayout, plan_copies
from workers.transfer.outcome import Outcome
from workers.transfer.peers import Peer
from workers.transfer.transfer_thread import Transfer, TransferThread


class Push:
    """The outgoing side of a grant. Pieces come from any thread; all else belongs to the loop.

    Units: `began_s` of the first write, on the monotonic clock; 0 until then.

    After `stop` or a failed write nothing more is posted. `on_fault` is called on the loop when a write
    fails, at least once.
    """

    def __init__(
        self,
        grant: Granted,
        peer: Peer,
        own: PoolLayout,
        transfers: TransferThread,
        on_fault: Callable[[KvmeshError], None],
    ) -> None:
        self._grant = grant
        self._peer = peer
        self._own = own
        self._transfers = transfers
        self._on_fault = on_fault
        self._first = grant.start // own.block_size
        self._end = -(-grant.end // own.block_size)
        self._lock = threading.Lock()
        self._on_way = 0
        self.num_bytes = 0
        self.began_s = 0.0
        self._layers_sent: Counter[tuple[int, int]] = Counter()
        self._fault: KvmeshError | None = None
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._progress = asyncio.Event()

    def write(self, start: int, end: int, blocks: Sequence[int], layers: LayerRange) -> None:
        """Send these layers of tokens `start` to `end`, which lie in `blocks`; what the owner has is skipped.

        `start` is a multiple of the block size.
        """
        sources = self._sources(start // self._own.block_size, blocks)
        pairs = [BlockPair(block, self._grant.blocks[number - self._first]) for number, block in sources]
        copies = plan_copies(self._own, self._peer.rank.pool, pairs, layers)
        with self._lock:
            if self._is_stopped or self._fault is not None:
                return
            for source in sources:
                self._layers_sent[source] += layers.num_layers
            if not copies:
                return
            self._on_way += 1
            self.began_s = self.began_s or time.monotonic()
            self.num_bytes += sum(copy.num_bytes for copy in copies)
        device = self._peer.rank.pool.device
        self._transfers.submit(
            Transfer(
                "WRITE",
                self._peer.rank.agent,
                copies,
                device,
                self._may_start,
                lambda: self._on_over(None),
                self._on_over,
            )
        )

    async def complete(self, blocks: Sequence[int]) -> None:
        """Until all of the grant lies at the target, as it is in `blocks`, which hold the whole sequence.

        The caller keeps the sequence held until the return. One that was preempted had blocks taken from
        under writes that had not ended: then everything is written again, after what is on its way.

        Raises:
            TransferFault: a write failed.
            InternalFault: the push was stopped, or `blocks` are not the whole sequence.
        """
        await self._wait_written()
        if not self._was_sent_once_from(blocks):
            self._layers_sent.clear()
            layers = LayerRange(self._own.first_layer, self._own.num_layers)
            self.write(0, self._grant.end, blocks, layers)
            await self._wait_written()
        if self._is_stopped or not self._was_sent_once_from(blocks):
            raise InternalFault(reason="a push ended before all of its grant was written")

    async def land(self) -> None:
        """Tell the owner, after `complete`.

        Raises:
            TransferFault: the notice could not be sent.
        """
        notice = encode(Landing(self._grant.grant, self.num_bytes))
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

    @property
    def has_failed(self) -> bool:
        """Whether a write failed. What was posted of it may land late, for all that can be known here."""
        return self._fault is not None

    async def _wait_written(self) -> None:
        await self.wait_settled()
        if self._fault is not None:
            raise self._fault

    def _was_sent_once_from(self, blocks: Sequence[int]) -> bool:
        wanted = dict.fromkeys(self._sources(0, blocks), self._own.num_layers)
        return len(wanted) == self._end - self._first and dict(self._layers_sent) == wanted

    def _sources(self, first: int, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Those of `blocks` that the grant wants, numbered in the sequence, the first of them `first`."""
        return [
            (number, block) for number, block in enumerate(blocks, first) if self._first <= number < self._end
        ]

    def _may_start(self) -> bool:
        with self._lock:
            return not self._is_stopped and self._fault is None

    def _on_over(self, failure: KvmeshError | None) -> None:
        with self._lock:
            self._on_way -= 1
            self._fault = self._fault or failure
        self._loop.call_soon_threadsafe(self._note_over, failure)

    def _note_over(self, failure: KvmeshError | None) -> None:
        self._progress.set()
        if failure is not None:
            self._on_fault(failure)
