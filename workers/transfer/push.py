"""The writes of one grant: KV goes out of every rank in groups of layers while the next ones compute.

```
 compute   [ layers 0-5 ][ layers 6-11 ][ … ][ last layers ]
 on wire                  [ layers 0-5 ][ layers 6-11 ][ … ][ last ][ Landing ]
```

The landing notice follows once every write of every rank lies at the target, so its owner need not count
pieces.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from proto.codec import encode
from proto.control import Granted
from proto.errors import DeadlineExceeded, InternalFault, KvmeshError, NothingPosted
from proto.jobs import Landing
from proto.layout import LayerRange
from workers.transfer.copy_plan import BlockPairs, Copies, plan_copies
from workers.transfer.outcome import Outcome
from workers.transfer.own_memory import OwnMemory
from workers.transfer.peers import Peer
from workers.transfer.rank_routes import RankRoute, plan_routes
from workers.transfer.transfers import Transfer


class _Sent(NamedTuple):
    """What one write took along: noted in no time while the engine computes, looked at once it has ended."""

    rank: int
    numbers: Sequence[int]
    blocks: Sequence[int]
    num_layers: int

    def sources(self) -> Iterator[tuple[int, int]]:
        return zip(self.numbers, self.blocks, strict=True)


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
        own: OwnMemory,
        on_fault: Callable[[KvmeshError], None],
    ) -> None:
        self._grant = grant
        self._peer = peer
        self._own = own
        self._routes = plan_routes(own.pools, peer.pools)
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
        self._sent: list[_Sent] = []
        self._fault: KvmeshError | None = None
        self._stall: KvmeshError | None = None
        self._may_land_late = False
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._progress = asyncio.Event()

    def write(self, rank: int, start: int, end: int, blocks: Sequence[int], layers: LayerRange) -> None:
        """Send what this rank has of these layers of tokens `start` to `end`, which lie in `blocks`; what the
        owner has is skipped.

        `start` is a multiple of the block size.
        """
        first = start // self._own.block_size
        low, high = max(first, self._first), min(first + len(blocks), self._end)
        if low < high:
            self._send(rank, range(low, high), blocks[low - first : high - first], layers)

    def write_whole(self, start: int, end: int, blocks: Sequence[int]) -> None:
        """As `write`, of what lies there already: all layers of every rank."""
        for rank, pool in enumerate(self._own.pools):
            self.write(rank, start, end, blocks, pool.layers)

    def _send(self, rank: int, numbers: Sequence[int], blocks: Sequence[int], layers: LayerRange) -> None:
        """`blocks` are those of the sequence with these numbers. A thread that computes waits for it."""
        transfers = self._plan(rank, BlockPairs(blocks, self._targets(numbers)), layers)
        with self._lock:
            if self._is_stopped or self._fault is not None:
                return
            self._sent.append(_Sent(rank, numbers, blocks, layers.num_layers))
            if not transfers:
                return
            self._on_way += len(transfers)
            self.began_s = self.began_s or time.monotonic()
            self.num_bytes += sum(transfer.num_bytes for transfer in transfers)
        for transfer in transfers:
            self._own.ranks[rank].transfers.submit(transfer)

    def _targets(self, numbers: Sequence[int]) -> Sequence[int]:
        granted, first = self._grant.blocks, self._first
        if isinstance(numbers, range):
            return granted[numbers.start - first : numbers.stop - first]
        return [granted[number - first] for number in numbers]

    def _plan(self, rank: int, blocks: BlockPairs, layers: LayerRange) -> list[Transfer]:
        """One to each rank of the peer that has some of it."""
        own, pools = self._own.pools[rank], self._peer.pools
        found = []
        for route in self._routes:
            first, end = max(layers.first, route.layers.first), min(layers.end, route.layers.end)
            if route.source == rank and first < end:
                common = LayerRange(first, end - first)
                copies = plan_copies(own, pools[route.target], blocks, common, route.heads)
                found.append(self._transfer(route, copies))
        return found

    def _transfer(self, route: RankRoute, copies: Copies) -> Transfer:
        target = self._peer.card.ranks[route.target]
        return Transfer(
            "WRITE",
            target.agent,
            copies,
            target.pool.device,
            self._may_start,
            lambda: self._on_over(0, None),
            lambda failure: self._on_over(copies.num_bytes, failure),
            self._on_stalled,
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
        granted = range(self._first, min(self._end, len(blocks)))
        again = self._in_doubt(granted, blocks)
        if again:
            self._forget_sent(again)
            for rank, pool in enumerate(self._own.pools):
                self._send(rank, again, [blocks[number] for number in again], pool.layers)
            await self._wait_written()
        is_whole = granted.stop == self._end and not self._in_doubt(granted, blocks)
        if self._is_stopped or not is_whole:
            raise InternalFault(reason="a push ended before all of its grant was written")

    async def land(self) -> None:
        """Tell the owner, after `complete`.

        Raises:
            TransferFault: the notice could not be sent.
        """
        notice = encode(Landing(self._grant.grant, self.num_bytes))
        told = Outcome(self._loop)
        self._own.notify(self._peer.rank.agent, notice, told.settle)
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
    def may_land_late(self) -> bool:
        """Whether a write failed of which something was posted: it may land, for all that can be known
        here."""
        return self._may_land_late

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

    def _in_doubt(self, granted: range, blocks: Sequence[int]) -> list[int]:
        """Those that a rank has not written exactly once, or from another block too, which was taken away."""
        doubted = [self._in_doubt_of(rank, granted, blocks) for rank in range(len(self._own.pools))]
        return sorted(set().union(*doubted))

    def _in_doubt_of(self, rank: int, granted: range, blocks: Sequence[int]) -> set[int]:
        layers_sent: Counter[tuple[int, int]] = Counter()
        for sent in self._sent:
            if sent.rank == rank:
                for source in sent.sources():
                    layers_sent[source] += sent.num_layers
        num_sources = Counter(number for number, _ in layers_sent)
        whole = self._own.pools[rank].num_layers
        return {
            number
            for number in granted
            if num_sources[number] != 1 or layers_sent[number, blocks[number]] != whole
        }

    def _forget_sent(self, numbers: Sequence[int]) -> None:
        forgotten = set(numbers)
        self._sent = [
            _Sent(sent.rank, (number,), (block,), sent.num_layers)
            for sent in self._sent
            for number, block in sent.sources()
            if number not in forgotten
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
            if failure is not None and not isinstance(failure, NothingPosted):
                self._may_land_late = True
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
