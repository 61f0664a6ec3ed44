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
from proto.errors import DeadlineExceeded, InternalFault, KvmeshError
from proto.jobs import Landing
from proto.layout import LayerRange, PoolLayout
from workers.transfer.copy_plan import BlockPair, plan_copies
from workers.transfer.outcome import Outcome
from workers.transfer.peers import Peer
from workers.transfer.transfers import Transfer, Transfers


class Push:
    """The outgoing side of a grant. Pieces come from any thread; all else belongs to the loop.

    Units: on the monotonic clock, `began_s` of the first write and `computed_s` of the computation's end;
    0 until then. `num_computed_bytes` of those written had landed at that end.

    After `stop` or a failed write nothing more is posted. `on_fault` is called on the loop when a write
    fails or is stuck, at least once.
    """

    def __init__(
        self,
        grant: Granted,
        peer: Peer,
        own: PoolLayout,
        transfers: Transfers,
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
        self.computed_s = 0.0
        self.num_computed_bytes = 0
        self._num_landed_bytes = 0
        self._layers_sent: Counter[tuple[int, int]] = Counter()
        self._fault: KvmeshError | None = None
        self._stall: KvmeshError | None = None
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._progress = asyncio.Event()

    def write(self, start: int, end: int, blocks: Sequence[int], layers: LayerRange) -> None:
        """Send these layers of tokens `start` to `end`, which lie in `blocks`; what the owner has is skipped.

        `start` is a multiple of the block size.
        """
        self._send(self._sources(start // self._own.block_size, blocks), layers)

    def _send(self, sources: Sequence[tuple[int, int]], layers: LayerRange) -> None:
        pairs = [BlockPair(block, self._grant.blocks[number - self._first]) for number, block in sources]
        copies = plan_copies(self._own, self._peer.rank.pool, pairs, layers)
        with self._lock:
            if self._is_stopped or self._fault is not None:
                return
            for source in sources:
                self._layers_sent[source] += layers.num_layers
            if not len(copies):
                return
            self._on_way += 1
            self.began_s = self.began_s or time.monotonic()
            self.num_bytes += copies.num_bytes
        device = self._peer.rank.pool.device
        self._transfers.submit(
            Transfer(
                "WRITE",
                self._peer.rank.agent,
                copies,
                device,
                self._may_start,
                lambda: self._on_over(0, None),
                lambda failure: self._on_over(copies.num_bytes, failure),
                self._on_stalled,
            )
        )

    def note_computed(self) -> None:
        """The last layer of the last token is computed; called in the thread that did."""
        with self._lock:
            self.computed_s = time.monotonic()
            self.num_computed_bytes = self._num_landed_bytes

    async def complete(self, blocks: Sequence[int]) -> None:
        """Until all of the grant lies at the target, as it is in `blocks`, which hold the whole sequence.

        The caller keeps the sequence held until the return. One that was preempted had blocks taken from
        under writes that had not ended: what may have changed is written again, after what is on its way.

        Raises:
            TransferFault: a write failed.
            DeadlineExceeded: a write is stuck; it may end yet.
            InternalFault: the push was stopped, or `blocks` are not the whole sequence.
        """
        await self._wait_written()
        sources = self._sources(0, blocks)
        again = self._in_doubt(sources)
        if again:
            self._forget_sent(again)
            self._send(again, LayerRange(self._own.first_layer, self._own.num_layers))
            await self._wait_written()
        is_whole = len(sources) == self._end - self._first and not self._in_doubt(sources)
        if self._is_stopped or not is_whole:
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

    @property
    def is_stalled(self) -> bool:
        """Whether a write was stuck, and may be still."""
        return self._stall is not None

    async def _wait_written(self) -> None:
        while self._on_way and self._stall is None:
            self._progress.clear()
            await self._progress.wait()
        fault = self._fault or self._stall
        if fault is not None:
            raise fault

    def _in_doubt(self, sources: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those not written exactly once, or written from another block too: one that was taken away."""
        num_sources = Counter(number for number, _ in self._layers_sent)
        whole = self._own.num_layers
        return [
            source for source in sources if num_sources[source[0]] != 1 or self._layers_sent[source] != whole
        ]

    def _forget_sent(self, sources: Sequence[tuple[int, int]]) -> None:
        numbers = {number for number, _ in sources}
        for source in [source for source in self._layers_sent if source[0] in numbers]:
            del self._layers_sent[source]

    def _sources(self, first: int, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Those of `blocks` that the grant wants, numbered in the sequence, the first of them `first`."""
        return [
            (number, block) for number, block in enumerate(blocks, first) if self._first <= number < self._end
        ]

    def _may_start(self) -> bool:
        with self._lock:
            return not self._is_stopped and self._fault is None

    def _on_over(self, num_bytes: int, failure: KvmeshError | None) -> None:
        with self._lock:
            self._on_way -= 1
            if failure is None:
                self._num_landed_bytes += num_bytes
            self._fault = self._fault or failure
            is_settled = not self._on_way
        if is_settled or failure is not None:  # each wake-up of the loop holds the next transfer up
            self._loop.call_soon_threadsafe(self._note_over, failure)

    def _on_stalled(self, limit_s: float) -> None:
        what = f"a write to {self._peer.card.worker}"
        self._loop.call_soon_threadsafe(self._note_stalled, DeadlineExceeded(what=what, limit_s=limit_s))

    def _note_stalled(self, fault: KvmeshError) -> None:
        self._stall = fault
        self._progress.set()
        self._on_fault(fault)

    def _note_over(self, failure: KvmeshError | None) -> None:
        self._progress.set()
        if failure is not None:
            self._on_fault(failure)
