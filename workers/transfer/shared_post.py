"""A post that two hands share: whoever is free takes a portion of what nobody has begun.

```
 copies   [ first hand ][ second hand ][ second ][ first ][ … ]
           a third       a third of what was left, and so on down to `portion_bytes`
```
A half would leave whoever is slower, since the other has a core to itself, with the last portion alone.
"""

import threading

import numpy as np

from proto.errors import KvmeshError, NothingPosted
from workers.transfer.copy_plan import Copies
from workers.transfer.transfers import Operation


class SharedPost:
    """Over when every portion that was taken has ended and none is left. Any thread may call it.

    `fault` is what went wrong first; `NothingPosted` only if that is so of every portion that failed.

    Args:
        portion_bytes: no portion is smaller, but for the last one.
    """

    def __init__(
        self, operation: Operation, agent: str, copies: Copies, remote_device: str, portion_bytes: int
    ) -> None:
        self.operation = operation
        self.agent = agent
        self.remote_device = remote_device
        self.fault: KvmeshError | None = None
        self._copies = copies
        self._portion_bytes = portion_bytes
        self._left_bytes = copies.num_bytes
        self._num_taken = 0
        self._num_moving = 0
        self._lock = threading.Lock()

    def take(self) -> Copies | None:
        """A portion, whose `end` is owed from now on; None: nothing is left."""
        with self._lock:
            first = self._num_taken
            if first == len(self._copies):
                return None
            self._num_moving += 1
            if self._left_bytes <= self._portion_bytes:
                self._num_taken = len(self._copies)
            else:
                self._num_taken = self._end_of_portion(first)
            copies = Copies(self._copies.table[first : self._num_taken])
            self._left_bytes -= copies.num_bytes
            return copies

    def _end_of_portion(self, first: int) -> int:
        ends_X = np.cumsum(self._copies.table[first:, 2])
        portion_bytes = max(self._left_bytes // 3, self._portion_bytes)
        return first + int(np.searchsorted(ends_X, portion_bytes)) + 1

    def end(self, fault: KvmeshError | None) -> None:
        """A portion lies at the target, or failed: then nothing more is begun."""
        with self._lock:
            self._num_moving -= 1
            if fault is None:
                return
            if self.fault is None or isinstance(self.fault, NothingPosted):
                self.fault = fault
            self._num_taken = len(self._copies)

    @property
    def is_over(self) -> bool:
        with self._lock:
            return not self._num_moving and self._num_taken == len(self._copies)
