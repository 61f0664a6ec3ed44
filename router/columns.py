"""Numbers of workers as columns, a row for each slot, so that one sum is done for all at once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
"""A number for each worker."""

Slotted = NDArray[np.intp]
"""Slots of workers, in the order in which their numbers are wanted."""

Places = NDArray[np.intp]
"""Some of the places in columns."""

_FEWEST_ROWS = 64


class Columns:
    """As many rows as slots were written; a row that was not is all 0."""

    def __init__(self, num_columns: int) -> None:
        self._rows = np.zeros((_FEWEST_ROWS, num_columns))

    def put(self, slot: int, row: Sequence[float]) -> None:
        while slot >= len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self._rows[slot] = row

    def take(self, slots: Slotted) -> list[Column]:
        """A copy of each column, for these slots."""
        while slots.size and slots.max() >= len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        return list(np.ascontiguousarray(self._rows.take(slots, axis=0).T))
