"""Who owns each block of KV: nobody, the cache, sequences and readers, or a writer outside the engine.

Each block is in exactly one state:

```
          allocate                      free (last owner)
 free ────────────────► active ◄──────────────────────────► idle
   ▲                    1..n owners          share           named in the cache, evicted oldest first
   │ give_back             ▲
   └──────── set aside ────┘             allocate and set_aside take free blocks first, then idle ones,
                     adopt               whose names the cache then forgets
```

Every operation is O(1) a block.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from workers.engine.prefix_cache import PrefixCache


class BlockPool:
    """States and reference counts of `num_blocks` blocks. Not safe from several threads at once."""

    def __init__(self, num_blocks: int, cache: PrefixCache) -> None:
        self.num_blocks = num_blocks
        self._cache = cache
        self._refs = [0] * num_blocks
        # A stack, so that blocks freed tail first come back head first: neighbours move in one copy.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._aside: set[int] = set()

    @property
    def num_available(self) -> int:
        """Blocks that can be had now, reusable KV in idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_aside(self) -> int:
        return len(self._aside)

    @property
    def num_active(self) -> int:
        return self.num_blocks - self.num_available - self.num_aside

    def count_idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are idle, and so would no longer be available once shared."""
        idle = self._idle
        return sum(block in idle for block in blocks)

    def allocate(self, num_blocks: int) -> list[int]:
        """`num_blocks` blocks with one owner each; the caller has seen that so many are available."""
        blocks = self._take(num_blocks)
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each of these active or idle blocks."""
        for block in blocks:
            if not self._refs[block]:
                del self._idle[block]
            self._refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """One owner fewer for each, last block first, so that a chain is evicted from its end."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if self._cache.has(block):
                self._idle[block] = None
            else:
                self._free.append(block)

    def set_aside(self, num_blocks: int) -> list[int]:
        """`num_blocks` blocks for a writer outside the engine; the caller has seen that so many are there."""
        blocks = self._take(num_blocks)
        self._aside.update(blocks)
        return blocks

    def adopt(self, blocks: Iterable[int]) -> None:
        """Blocks that were set aside become active, with one owner each."""
        for block in blocks:
            self._aside.remove(block)
            self._refs[block] = 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """Blocks that were set aside become free."""
        for block in reversed(blocks):
            self._aside.remove(block)
            self._free.append(block)

    def check(self, owned: Iterable[int]) -> None:
        """Proves, at O(pool), that each block is in one state and has just the owners counted in `owned`."""
        owners = Counter(owned)
        states = [*self._free, *self._idle, *self._aside, *owners]
        assert sorted(states) == list(range(self.num_blocks)), "a block is lost or in two states"
        assert all(self._refs[block] == owners[block] for block in range(self.num_blocks)), "a count is off"
        assert all(map(self._cache.has, self._idle)), "an idle block holds nothing"
        assert not any(map(self._cache.has, [*self._free, *self._aside])), "the cache names a free block"
        assert self.num_active == len(owners)

    def _take(self, num_blocks: int) -> list[int]:
        first = max(0, len(self._free) - num_blocks)
        blocks = self._free[first:]
        del self._free[first:]
        blocks.reverse()
        evicted = [self._idle.popitem(last=False)[0] for _ in range(num_blocks - len(blocks))]
        self._cache.forget(evicted)
        return blocks + evicted
