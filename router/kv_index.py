"""Which worker holds which blocks: the index that every choice starts from.

```
 a prompt's keys ──► block table ──► sets of holders, by number      (one gather for the whole prompt)
   k0 k1 k2 k3 k4 …                    5  5  5  2  2  0 …
                                       └──┬──┘  └┬─┘
                                   held: {a,b,c} ∩ {a,c}: a look at each run of one number, not at each block
```
A block's hash names all tokens before it, so the holders of a prompt's blocks change only where a branch or
an eviction lies: `match` jumps from change to change. It needs no promise that a cache has no holes: a worker
that evicted block 2 and still holds block 5 is out of the set at 2, and sets are only ever intersected.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from proto.blockhash import HASH_BYTES
from proto.errors import InvalidRequest
from proto.events import BlocksStored, KvEvent
from router.block_table import BlockTable, Keys, Positions
from router.holder_sets import NOBODY, HolderSets
from router.slots import Slots

FIRST_LOOK = 128  # blocks of a prompt that are looked up before it is known whether anybody holds any
SCAN_POSITIONS = 65_536
MANY_KEYS = 256
EVERYBODY = -1
NEVER_ZERO = np.int64(-1 << 63)

Depths = NDArray[np.int64]
"""For each slot, how many blocks from the start of a prompt its worker holds without a hole."""


def block_keys(hashes: bytes) -> Keys:
    """The first 8 bytes of each packed hash but for a bit: enough for an index, never for a cache.

    Raises:
        InvalidRequest: the length is no multiple of a hash's.
    """
    if len(hashes) % HASH_BYTES:
        raise InvalidRequest(
            field="hashes", reason=f"{len(hashes)} bytes are no whole number of block hashes"
        )
    return np.frombuffer(hashes, np.int64)[::2] | NEVER_ZERO


class KvIndex:
    """Blocks and their holders. Memory follows what is held: a block without a holder is not remembered."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._table = BlockTable()
        self._sets = HolderSets()
        self._num_held: dict[str, int] = {}
        self._swept = 0  # the place in the table where the next sweep goes on

    @property
    def num_blocks(self) -> int:
        """Distinct blocks held anywhere."""
        return len(self._table) - self._sets.num_dead_blocks

    @property
    def num_bytes(self) -> int:
        """Memory of the table, by far the most of the index's own."""
        return self._table.num_bytes

    def num_blocks_of(self, worker: str) -> int:
        return self._num_held.get(worker, 0)

    def which_of(self, worker: str, keys: Keys) -> NDArray[np.bool_]:
        """For each of these whether `worker` holds it."""
        is_theirs = np.zeros(len(keys), np.bool_)
        if self._num_held.get(worker):
            bit = 1 << self._slots.allot(worker)
            numbers = self._table.values[self._table.find(keys)]
            for number in set(numbers.tolist()):
                if self._sets.masks[number] & bit:
                    is_theirs |= numbers == number
        return is_theirs

    def keys_of(self, worker: str) -> Iterator[int]:
        """What `worker` holds, found by a scan that may be left and gone on with while others' blocks change.

        A key may come twice.
        """
        bit = 1 << self._slots.allot(worker)
        table, start = self._table, 0
        num_lanes = table.num_lanes
        while start < len(table.values):
            numbers = table.values[start : start + SCAN_POSITIONS]
            theirs = [number for number in set(numbers.tolist()) if self._sets.masks[number] & bit]
            yield from table.keys_at(start + np.flatnonzero(np.isin(numbers, theirs))).tolist()
            start += SCAN_POSITIONS
            if table.num_lanes != num_lanes:  # laid out anew meanwhile
                num_lanes, start = table.num_lanes, 0

    def apply(self, worker: str, event: KvEvent) -> None:
        """Takes what `worker` says of its cache; saying it twice changes nothing."""
        keys = block_keys(event.hashes)
        if isinstance(event, BlocksStored):
            self.add(worker, keys)
        else:
            self.remove(worker, keys)

    def apply_all(self, worker: str, events: Iterable[KvEvent]) -> None:
        """As `apply` for each in order; neighbours of a kind are taken at once, which costs far less."""
        for kind, alike in groupby(events, type):
            self.apply(worker, kind(b"".join(event.hashes for event in alike)))

    def add(self, worker: str, keys: Keys) -> None:
        """`worker` holds these."""
        bit = 1 << self._slots.allot(worker)
        num_new = self._change(self._table.put(_distinct(keys)), lambda mask: mask | bit)
        self._num_held[worker] = self._num_held.get(worker, 0) + num_new

    def remove(self, worker: str, keys: Keys) -> None:
        """`worker` does not hold these."""
        if self._num_held.get(worker):
            bit = 1 << self._slots.allot(worker)
            positions = self._table.find(_distinct(keys))
            self._num_held[worker] -= self._change(positions[positions >= 0], lambda mask: mask & ~bit)

    def forget(self, worker: str) -> None:
        """`worker` holds nothing any more, at once; blocks that only it held are for `sweep`."""
        if self._num_held.pop(worker, 0):
            self._sets.drop_worker(1 << self._slots.allot(worker))

    def sweep(self, limit: int) -> bool:
        """Looks at `limit` places for blocks that only forgotten workers held; whether there are more."""
        if not self._sets.num_dead_blocks:
            return False
        start = self._swept if self._swept < len(self._table.values) else 0
        numbers = self._table.values[start : start + limit]
        dead = start + np.flatnonzero(self._sets.is_dead[numbers])
        self._swept = start + limit
        for number, positions in self._runs(dead):
            self._rename(positions, number, NOBODY)
        return self._sets.num_dead_blocks > 0

    def match(self, keys: Keys) -> "Match":
        """How far from the start of `keys` the workers' blocks reach without a hole."""
        held, start, reaches = EVERYBODY, 0, []
        size = FIRST_LOOK
        while start < len(keys) and held:
            numbers = self._table.look_up(keys[start : start + size])
            changes = (numbers[1:] != numbers[:-1]).nonzero()[0] + 1
            for place in (0, *changes.tolist()):
                still = held & self._sets.masks[numbers[place]]
                if still != held:
                    reaches.append((start + place, held))
                    held = still
                    if not held:
                        break
            start, size = start + size, len(keys)
        if held:
            reaches.append((len(keys), held))
        return Match(reaches)

    def _change(self, positions: Positions, change: Callable[[int], int]) -> int:
        """Changes the holders of blocks; how many blocks have other ones now."""
        num_changed = 0
        for number, spots in self._runs(positions):
            before = self._sets.masks[number]
            after = change(before)
            if after != before:
                self._rename(spots, number, self._sets.number_of(after))
                num_changed += len(spots)
        return num_changed

    def _runs(self, positions: Positions) -> Iterator[tuple[int, Positions]]:
        """The positions by the set that their blocks name: mostly all the same one."""
        numbers = self._table.values[positions]
        distinct = set(numbers.tolist())
        if len(distinct) < 2:
            yield from ((number, positions) for number in distinct)
            return
        order = numbers.argsort(kind="stable")
        numbers, positions = numbers[order], positions[order]
        cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, end in pairwise(cuts):
            yield int(numbers[start]), positions[start:end]

    def _rename(self, positions: Positions, source: int, target: int) -> None:
        self._sets.move(len(positions), source, target)
        if target == NOBODY:
            self._table.remove(positions)
        else:
            self._table.set_values(positions, target)


class Match:
    """Which workers hold how much of a prompt.

    `reaches` are pairs of a depth and a mask of the workers that hold so many blocks or more, both descending
    into the prompt: each mask is a part of the one before.
    """

    def __init__(self, reaches: list[tuple[int, int]]) -> None:
        self.reaches = [reach for reach in reaches if reach[0]]

    def depths(self, num_slots: int) -> Depths:
        """One for each slot, all at once."""
        if not self.reaches or not num_slots:
            return np.zeros(num_slots, np.int64)
        if len(self.reaches) == 1:
            ((depth, mask),) = self.reaches
            alone: Depths = _bits_of((mask,), num_slots)[0] * np.int64(depth)
            return alone
        is_in = _bits_of([mask for _, mask in self.reaches], num_slots)
        steps = np.array([0, *(depth for depth, _ in self.reaches)])
        depths: Depths = steps[is_in.sum(axis=0, dtype=np.intp)]  # whoever is in a mask is in all before it
        return depths


def _bits_of(masks: Sequence[int], num_slots: int) -> NDArray[np.uint8]:
    """A row for each mask, with a 1 for each slot that is in it."""
    num_bytes = (num_slots + 7) // 8
    packed = b"".join(mask.to_bytes(num_bytes, "little") for mask in masks)
    rows = np.frombuffer(packed, np.uint8).reshape(len(masks), num_bytes)
    return np.unpackbits(rows, axis=1, count=num_slots, bitorder="little")


def _distinct(keys: Keys) -> Keys:
    """A set tells soonest of few keys, a sort of the thousands that a long prompt has."""
    if len(keys) < MANY_KEYS:
        return keys if len(set(keys.tolist())) == len(keys) else np.unique(keys)
    in_order = np.sort(keys)
    return np.unique(in_order) if (in_order[1:] == in_order[:-1]).any() else keys
