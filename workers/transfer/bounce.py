"""The way of a post through a bounce buffer, in rounds, and who has which buffer.

```
 write   pool ──own──► buffer ──outer──► peer        read   peer ──outer──► buffer ──own──► pool
```
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from workers.transfer.copy_plan import Copies, Table
from workers.transfer.transfers import Operation


class Round(NamedTuple):
    """What goes through the buffer at once. `own` is between pool and buffer, `outer` between buffer and
    peer."""

    own: Copies
    outer: Copies


def plan_rounds(operation: Operation, copies: Copies, buffer: int, buffer_bytes: int) -> list[Round]:
    """`copies` between pool and peer, cut where the buffer at this address is full, packed in it. Pure."""
    pieces_P3, places_P = _pieces(copies.table, buffer_bytes)
    in_buffer_P = places_P % np.uint64(buffer_bytes) + np.uint64(buffer)
    to_buffer_P3, from_buffer_P3 = pieces_P3.copy(), pieces_P3.copy()
    to_buffer_P3[:, 1] = from_buffer_P3[:, 0] = in_buffer_P
    own_P3, outer_P3 = (
        (to_buffer_P3, from_buffer_P3) if operation == "WRITE" else (from_buffer_P3, to_buffer_P3)
    )
    turn_P = places_P // np.uint64(buffer_bytes)
    return [
        Round(Copies(own_P3[turn_P == turn]), Copies(outer_P3[turn_P == turn])) for turn in np.unique(turn_P)
    ]


def _pieces(table: Table, buffer_bytes: int) -> tuple[Table, Table]:
    """The runs, cut where a buffer is full; and where each piece begins if all lie end to end."""
    ends_X = np.cumsum(table[:, 2])
    starts_X = ends_X - table[:, 2]
    total = int(ends_X[-1]) if len(ends_X) else 0
    fulls = np.arange(0, total, buffer_bytes, dtype=np.uint64)
    places_P = np.union1d(starts_X, fulls)
    rows_P = np.searchsorted(starts_X, places_P, side="right") - 1
    offsets_P = places_P - starts_X[rows_P]
    sizes_P = np.diff(places_P, append=np.uint64(total))
    pieces_P3 = np.column_stack((table[rows_P, 0] + offsets_P, table[rows_P, 1] + offsets_P, sizes_P))
    return pieces_P3, places_P


class BounceBuffers:
    """Which are free, and how many each peer's transfers have. Belongs to the transfer thread.

    Those to one peer have a quarter at most, and as many again if the first are stuck: where it is stopped
    they keep what they have until it wakes, and others shall not wait for that.
    """

    def __init__(self, addresses: Sequence[int]) -> None:
        self._free = list(addresses)
        self._most = max(1, len(addresses) // 4)
        self._num_taken: Counter[str] = Counter()
        self._num_stuck: Counter[str] = Counter()

    def try_take(self, agent: str) -> int | None:
        """The address of one for a transfer with this peer; None: not now."""
        num_forgiven = min(self._num_stuck[agent], self._most)
        if not self._free or self._num_taken[agent] - num_forgiven >= self._most:
            return None
        self._num_taken[agent] += 1
        return self._free.pop()

    def note_stuck(self, agent: str) -> None:
        """One of its transfers does not end, and what follows goes another way."""
        self._num_stuck[agent] += 1

    def put_back(self, agent: str, address: int, was_stuck: bool) -> None:
        self._free.append(address)
        self._num_taken[agent] -= 1
        self._num_stuck[agent] -= was_stuck
        if not self._num_taken[agent]:
            del self._num_taken[agent], self._num_stuck[agent]

    @property
    def num_free(self) -> int:
        return len(self._free)
