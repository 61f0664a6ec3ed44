"""The blocks that others are told of, to write into or to read from: the pool's own, or staging blocks.

```
              direct                          host
 a grant      names blocks of the pool        names as many staging blocks
 it landed    they are the sequence's         a copy: they are free again, the pool's are the sequence's
 a pin        names blocks of the pool        a copy: names the staging blocks that it went to
```
"""

import asyncio
import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol

from proto.errors import KvmeshError
from workers.transfer.outcome import Outcome
from workers.transfer.own_memory import OwnMemory
from workers.transfer.transfers import OnDone


class LentBlocks(Protocol):
    """Belongs to the event loop. `is_apart`: nobody else ever touches the pool's own blocks."""

    is_apart: bool

    @property
    def num_free(self) -> int:
        """Staging blocks that could be lent; none where there are none."""
        ...

    def has_room(self, num_blocks: int) -> bool:
        """Whether so many could be lent now."""
        ...

    def try_lend(self, blocks: Sequence[int]) -> list[int] | None:
        """Of each block of the pool the one that others are told of; None: there is no room."""
        ...

    def fetch(self, lent: Sequence[int], blocks: Sequence[int], on_done: OnDone) -> None:
        """What others wrote there shall lie in the pool's blocks; `on_done` is called on the loop."""
        ...

    async def show(self, blocks: Sequence[int], lent: Sequence[int]) -> None:
        """Until what lies in the pool's blocks lies where others read it.

        Cancel: the copying goes on.

        Raises:
            InternalFault: it cannot be copied.
        """
        ...

    def put_back(self, lent: Sequence[int]) -> None:
        """They may be lent anew: nobody else touches them any more, or heeds what becomes of them."""
        ...


def lent_blocks_of(memory: OwnMemory) -> LentBlocks:
    """As the memory is reached."""
    return PoolBlocks() if memory.strategy == "direct" else StagingBlocks(memory)


class PoolBlocks:
    """The `LentBlocks` of a pool that others reach: its own."""

    is_apart = False

    @property
    def num_free(self) -> int:
        return 0

    def has_room(self, num_blocks: int) -> bool:
        return True

    def try_lend(self, blocks: Sequence[int]) -> list[int] | None:
        return list(blocks)

    def fetch(self, lent: Sequence[int], blocks: Sequence[int], on_done: OnDone) -> None:
        on_done(None)

    async def show(self, blocks: Sequence[int], lent: Sequence[int]) -> None:
        """They lie there."""

    def put_back(self, lent: Sequence[int]) -> None:
        """Whose they are is the engine's to know."""


class StagingTable:
    """Which staging blocks are free; those of the lowest numbers are taken first, for neighbours move in one
    copy. Those that are being copied may be put back before that has ended: they are free once it has."""

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks))
        self._copied: set[int] = set()
        self._returned: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def try_take(self, num_blocks: int) -> list[int] | None:
        if num_blocks > self.num_free:
            return None
        return [heapq.heappop(self._free) for _ in range(num_blocks)]

    def put_back(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self._copied:
                self._returned.add(block)
            else:
                heapq.heappush(self._free, block)

    def begin_copy(self, blocks: Iterable[int]) -> None:
        """Of blocks that are taken, and copied once at a time."""
        self._copied.update(blocks)

    def end_copy(self, blocks: Iterable[int]) -> None:
        over = set(blocks)
        self._copied -= over
        for block in over & self._returned:
            heapq.heappush(self._free, block)
        self._returned -= over


class StagingBlocks:
    """The `LentBlocks` of a pool that is hidden behind staging."""

    is_apart = True

    def __init__(self, memory: OwnMemory) -> None:
        self._memory = memory
        self._table = StagingTable(memory.num_staging_blocks)

    @property
    def num_free(self) -> int:
        return self._table.num_free

    def has_room(self, num_blocks: int) -> bool:
        return num_blocks <= self.num_free

    def try_lend(self, blocks: Sequence[int]) -> list[int] | None:
        return self._table.try_take(len(blocks))

    def fetch(self, lent: Sequence[int], blocks: Sequence[int], on_done: OnDone) -> None:
        self._memory.unstage(lent, blocks, self._begin_copy(lent, on_done))

    async def show(self, blocks: Sequence[int], lent: Sequence[int]) -> None:
        shown = Outcome(asyncio.get_running_loop())
        self._memory.stage(blocks, lent, self._begin_copy(lent, shown.settle))
        fault = await shown.wait()
        if fault is not None:
            raise fault

    def _begin_copy(self, lent: Sequence[int], on_done: OnDone) -> OnDone:
        """Who copies is to call the result, from any thread; `on_done` is called on the loop then."""
        loop = asyncio.get_running_loop()

        def end(fault: KvmeshError | None) -> None:
            self._table.end_copy(lent)
            on_done(fault)

        def tell(fault: KvmeshError | None) -> None:
            loop.call_soon_threadsafe(end, fault)

        self._table.begin_copy(lent)
        return tell

    def put_back(self, lent: Sequence[int]) -> None:
        self._table.put_back(lent)
