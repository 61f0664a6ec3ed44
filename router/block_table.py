"""A hash table of blocks that is asked for many at once: 64-bit keys to small numbers, in numpy columns.

```
 bucket    keys: 8 lanes        values: 8 lanes        a cell of 64 bytes: upper halves of keys, values
   0     │ k │ k │ · │ k │ …   │ v │ v │ · │ v │ …    │ k k · k · · · · v v · v · · · · │   · is empty: 0
   1     │ k │ k │ k │ k │ …   │ v │ v │ v │ v │ …    │ k k k k k k k k v v v v v v v v │   full: spills
   …
 spill   │ k │ k │ · │ …       │ v │ v │ · │ …  0 │                    found by a dict; the last value is 0
```
A key lies in the bucket that its low bits name. One gather brings the cache lines of a whole prompt, whose
misses overlap; a dict would wait for four memory accesses a block, one after another. `look_up` needs one
line a key, the cell: it goes by the upper half of a key, and may take another key of that bucket for it once
in a thousand million. At most half of the lanes are taken, so that about one key in 200 is spilled; then the
buckets double, each splitting in two.
"""

import numpy as np
from numpy.typing import NDArray

LANES = 8
_LANE_BITS = 3
_FEWEST_BUCKETS = 256

Keys = NDArray[np.int64]
"""Keys of blocks; all below 0."""

Values = NDArray[np.int32]

Positions = NDArray[np.int64]
"""Where keys lie; -1, where the value is always 0, for those that lie nowhere. Good until the next `put`."""


class BlockTable:
    """Memory follows the most keys held at once: 40 to 80 bytes a key, and never less.

    `values` are to be read; `set_values` changes them.
    """

    def __init__(self) -> None:
        self._num = 0
        self._lay_out(_FEWEST_BUCKETS)

    def __len__(self) -> int:
        return self._num

    @property
    def num_bytes(self) -> int:
        return self._keys.nbytes + self.values.nbytes + self._cells.nbytes + self._has_spilled.nbytes

    def keys_at(self, positions: Positions) -> Keys:
        keys: Keys = self._keys[positions]
        return keys

    def find(self, keys: Keys) -> Positions:
        buckets = keys & self._bucket_mask
        found = (self._rows.take(buckets, axis=0) == keys[:, None]).ravel().nonzero()[0]
        positions: Positions = np.full(len(keys), -1)
        if len(found) == len(keys):
            positions = (buckets << _LANE_BITS) + (found & (LANES - 1))
        elif len(found):
            rows = found >> _LANE_BITS
            positions[rows] = (buckets[rows] << _LANE_BITS) + (found & (LANES - 1))
        if self._spilled and len(found) < len(keys):
            self._find_spilled(keys, buckets, positions)
        return positions

    def look_up(self, keys: Keys) -> Values:
        """The values of `keys` up to the first that lies nowhere, which has 0; what follows it may be 0 too.

        Quicker than by `find`.
        """
        buckets = keys & self._bucket_mask
        cells = self._cells.take(buckets, axis=0, mode="clip")
        found = (cells[:, :LANES] == _print_of(keys)[:, None]).ravel().nonzero()[0]
        values: Values = cells.ravel().take(found + (found & -LANES) + LANES, mode="clip")
        if len(found) == len(keys):
            return values
        spread = np.zeros(len(keys), np.int32)
        spread[found >> _LANE_BITS] = values
        for row in (spread == 0).nonzero()[0]:
            position = self._spilled.get(int(keys[row])) if self._spilled else None
            if position is None:
                break
            spread[row] = self.values[position]
        return spread

    def set_values(self, positions: Positions, values: Values | int) -> None:
        """Changes the values that lie there."""
        self.values[positions] = values
        self._refresh_cells(positions)

    def put(self, keys: Keys) -> Positions:
        """As `find`, but keys that are not there yet are put there, with value 0. `keys` are distinct."""
        positions = self.find(keys)
        absent = (positions < 0).nonzero()[0]
        if 2 * (self._num + len(absent)) > LANES * self._num_buckets:
            self._double()
            return self.put(keys)
        self._num += len(absent)
        while len(absent):
            absent = self._try_insert(keys, positions, absent)
        return positions

    def remove(self, positions: Positions) -> None:
        """Takes out what lies there. `positions` are distinct and hold keys."""
        for position in positions[positions >= self.num_lanes].tolist():
            del self._spilled[int(self._keys[position])]
            self._free_spill.append(position)
        self._keys[positions] = 0
        self.values[positions] = 0
        self._refresh_cells(positions)
        self._num -= len(positions)

    def _lay_out(self, num_buckets: int) -> None:
        """Empty columns; the last place is nobody's: the value 0 that absent keys have."""
        self._num_buckets = num_buckets
        self.num_lanes = num_buckets * LANES
        self._bucket_mask = num_buckets - 1
        num_spill = self.num_lanes // 64
        self._keys: Keys = np.zeros(self.num_lanes + num_spill + 1, np.int64)
        self.values = np.zeros(self.num_lanes + num_spill + 1, np.int32)
        self._spilled: dict[int, int] = {}
        self._free_spill = list(range(self.num_lanes, self.num_lanes + num_spill))
        self._rows = self._keys[: self.num_lanes].reshape(num_buckets, LANES)
        self._has_spilled = np.zeros(num_buckets, np.bool_)
        self._cells = np.zeros((num_buckets, 2 * LANES), np.int32)

    def _refresh_cells(self, positions: Positions) -> None:
        """The cells as keys and values are there now."""
        places = positions[positions < self.num_lanes]
        buckets, lanes = places >> _LANE_BITS, places & (LANES - 1)
        self._cells[buckets, lanes] = _print_of(self._keys[places])
        self._cells[buckets, lanes + LANES] = self.values[places]

    def _find_spilled(self, keys: Keys, buckets: Keys, positions: Positions) -> None:
        absent = (positions < 0).nonzero()[0]
        for row in absent[self._has_spilled[buckets[absent]]].tolist():
            positions[row] = self._spilled.get(int(keys[row]), -1)

    def _try_insert(self, keys: Keys, positions: Positions, absent: Positions) -> Positions:
        """Puts each absent key into the first empty lane of its bucket; those that lost theirs to another."""
        wanted = keys[absent]
        buckets = wanted & self._bucket_mask
        lanes = self._rows.take(buckets, axis=0).argmax(axis=1)  # 0 is more than any key
        spots = positions[absent] = (buckets << _LANE_BITS) + lanes
        full = self._keys[spots].nonzero()[0].tolist()
        if full:
            spots[full] = positions[absent[full]] = [self._spill(key) for key in wanted[full].tolist()]
        self._keys[spots] = wanted
        lost: Positions = absent[(self._keys[spots] != wanted).nonzero()[0]]
        return lost

    def _spill(self, key: int) -> int:
        if not self._free_spill:
            self._widen_spill()
        position = self._spilled[key] = self._free_spill.pop()
        self._keys[position] = key
        self._has_spilled[key & self._bucket_mask] = True
        return position

    def _widen_spill(self) -> None:
        """More places at the end; the last one stays nobody's."""
        before, more = len(self._keys) - 1, max(64, len(self._spilled))
        self._keys = np.concatenate((self._keys, np.zeros(more, np.int64)))
        self.values = np.concatenate((self.values, np.zeros(more, np.int32)))
        self._rows = self._keys[: self.num_lanes].reshape(self._num_buckets, LANES)
        self._free_spill.extend(range(before, before + more))

    def _double(self) -> None:
        """Splits each bucket by the next bit of its keys: a copy of all, from which half is struck out."""
        keys, values, num_lanes = self._keys, self.values, self.num_lanes
        spilled = list(self._spilled.items())
        self._lay_out(2 * self._num_buckets)
        is_upper = (keys[:num_lanes] & num_lanes // LANES) != 0
        for half, stays in ((slice(0, num_lanes), ~is_upper), (slice(num_lanes, 2 * num_lanes), is_upper)):
            np.multiply(keys[:num_lanes], stays, out=self._keys[half])
            np.multiply(values[:num_lanes], stays, out=self.values[half])
        self._cells[:, :LANES] = _print_of(self._rows)
        self._cells[:, LANES:] = self.values[: self.num_lanes].reshape(-1, LANES)
        self._num -= len(spilled)
        if spilled:
            places = self.put(np.array([key for key, _ in spilled], np.int64))
            self.set_values(places, values[[position for _, position in spilled]])


def _print_of(keys: Keys) -> Values:
    """The upper halves of keys; 0 where there is none."""
    return (keys >> 32).astype(np.int32)
