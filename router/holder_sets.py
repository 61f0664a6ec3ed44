"""Sets of workers, each kept once: what blocks name by a number instead of each having its own.

Blocks that were stored together have the same holders, so there are few sets however many blocks there are.
"""

import numpy as np
from numpy.typing import NDArray

NOBODY = 0
"""The number of the empty set."""


class HolderSets:
    """`masks[i]` has the bit of each worker in set `i`. A set lives while blocks name it.

    A set that only forgotten workers were in is dead: its blocks are held by nobody and wait to be swept.
    """

    def __init__(self) -> None:
        self.masks = [0]
        self.num_dead_blocks = 0
        self.is_dead: NDArray[np.bool_] = np.zeros(64, np.bool_)
        self._numbers = {0: NOBODY}
        self._num_blocks = [0]
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.masks) - len(self._free)

    def number_of(self, mask: int) -> int:
        """The set of these workers, a new one where there is none."""
        number = self._numbers.get(mask)
        if number is None:
            number = self._numbers[mask] = self._take_number()
            self.masks[number] = mask
        return number

    def move(self, num_blocks: int, source: int, target: int) -> None:
        """So many blocks name another set from now on; a set that no block names is forgotten."""
        self._num_blocks[target] += num_blocks
        if source == NOBODY:
            return
        self._num_blocks[source] -= num_blocks
        if self.is_dead[source]:
            self.num_dead_blocks -= num_blocks
        if not self._num_blocks[source]:
            self._let_go(source)

    def drop_worker(self, bit: int) -> None:
        """Takes a worker out of every set. Two sets may become alike; that costs nothing but a number."""
        for number, mask in enumerate(self.masks):
            if mask & bit:
                rest = self.masks[number] = mask ^ bit
                if self._numbers.get(mask) == number:
                    del self._numbers[mask]
                if rest:
                    self._numbers.setdefault(rest, number)
                else:
                    self.is_dead[number] = True
                    self.num_dead_blocks += self._num_blocks[number]

    def _take_number(self) -> int:
        if self._free:
            return self._free.pop()
        number = len(self.masks)
        self.masks.append(0)
        self._num_blocks.append(0)
        if number == len(self.is_dead):
            self.is_dead = np.concatenate((self.is_dead, np.zeros(number, np.bool_)))
        return number

    def _let_go(self, number: int) -> None:
        mask, self.masks[number] = self.masks[number], 0
        if self._numbers.get(mask) == number:
            del self._numbers[mask]
        self.is_dead[number] = False
        self._free.append(number)
