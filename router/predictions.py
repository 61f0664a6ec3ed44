"""What workers were promised and have not reported yet: prefixes that they will hold, and load.

```
 choice made ──► load counts, prefix counts
                   │            │
   a report        ▼            │      the load is in the report now
   includes it   (gone)         ▼
   its KV event came          (gone)   the prefix is in the index now
   or it is too old           (gone)   it was refused, cancelled, or lost
```
The prefix outlives the load, because a worker reports a request when it takes it and its blocks only when
they are computed: siblings that come in between must still follow it.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.block_table import Keys
from router.columns import Column, Columns, Slotted
from router.kv_index import KvIndex, Match
from router.slots import Slots

PromiseId = tuple[str, int]
"""The router that decided, and the number of its decision."""

AreStored = Callable[[Keys], NDArray[np.bool_]]
"""For each of these keys, whether the index has it for the worker."""


class Promise(msgspec.Struct, frozen=True, eq=False):
    """One choice, as the worker will feel it.

    `keys` are those of the whole prompt. Units: `new_tokens` to compute; `made_s` on this process's clock.
    """

    router: str
    number: int
    worker: str
    new_tokens: int
    keys: Keys
    made_s: float

    @property
    def id(self) -> PromiseId:
        return (self.router, self.number)


class PromisedLoad(msgspec.Struct, frozen=True):
    num_sequences: int = 0
    new_tokens: int = 0


class _Ledger:
    """The promises made to one worker, each in the order made. `index` has the prefixes of all workers."""

    def __init__(self, worker: str, index: KvIndex) -> None:
        self.loads: dict[PromiseId, Promise] = {}
        self.prefixes: dict[PromiseId, Promise] = {}
        self.included: Mapping[str, int] = {}
        self.new_tokens = 0
        self._worker = worker
        self._index = index
        self._more: dict[int, int] = {}  # in how many prefixes beside one a block is, if in any

    def add(self, promise: Promise) -> None:
        self.drop(promise.id)
        if self.included.get(promise.router, -1) < promise.number:
            self.loads[promise.id] = promise
            self.new_tokens += promise.new_tokens
        self.prefixes[promise.id] = promise
        is_held = self._index.which_of(self._worker, promise.keys)
        for key in promise.keys[is_held].tolist():
            self._more[key] = self._more.get(key, 0) + 1
        self._index.add(self._worker, promise.keys[~is_held])

    def drop(self, promise_id: PromiseId) -> None:
        self.drop_load(promise_id)
        promise = self.prefixes.get(promise_id)
        if promise is not None:
            self.drop_prefixes([promise])

    def drop_prefixes(self, promises: Sequence[Promise]) -> None:
        """At once, which costs far less: a report ends dozens."""
        for promise in promises:
            del self.prefixes[promise.id]
        if promises:
            keys = np.concatenate([promise.keys for promise in promises])
            self._index.remove(self._worker, self._without_shared(keys))

    def drop_load(self, promise_id: PromiseId) -> None:
        promise = self.loads.pop(promise_id, None)
        if promise is not None:
            self.new_tokens -= promise.new_tokens

    def clear(self) -> None:
        for promise in self.prefixes.values():
            self._index.remove(self._worker, promise.keys)

    def _without_shared(self, keys: Keys) -> Keys:
        """Those of the keys that no prefix has any more once these go. Mutates: the counts of the others."""
        more = self._more
        if not more:
            return keys
        shared = [(place, key) for place, key in enumerate(keys.tolist()) if key in more]
        return np.delete(keys, [place for place, key in shared if self._is_in_another(key)])

    def _is_in_another(self, key: int) -> bool:
        """Whether a prefix beside the one that goes has this block. Mutates: the count of them."""
        num_more = self._more.get(key, 0)
        if num_more > 1:
            self._more[key] = num_more - 1
        elif num_more:
            del self._more[key]
        return num_more > 0


class Predictions:
    """All promises, by worker. Bounded in number for each, and in age.

    Units: `ttl_s` seconds that a promise counts at most.
    """

    def __init__(self, ttl_s: float, limit_per_worker: int, slots: Slots) -> None:
        self._ttl_s = ttl_s
        self._limit = limit_per_worker
        self._slots = slots
        self._index = KvIndex(slots)
        self._loads = Columns(2)
        self._ledgers: dict[str, _Ledger] = {}

    def __len__(self) -> int:
        return sum(len(ledger.prefixes) for ledger in self._ledgers.values())

    def note(self, promise: Promise) -> None:
        """A choice was made, here or by another router."""
        ledger = self._ledger(promise.worker)
        ledger.add(promise)
        if len(ledger.prefixes) > self._limit:
            ledger.drop(next(iter(ledger.prefixes)))
        self._show(promise.worker, ledger)

    def withdraw(self, promise: Promise) -> None:
        """The worker did not take it."""
        ledger = self._ledger(promise.worker)
        ledger.drop(promise.id)
        self._show(promise.worker, ledger)

    def settle(self, worker: str, included: Mapping[str, int], are_stored: AreStored, now_s: float) -> None:
        """A report came that includes decisions up to `included[router]`: they are promises no more."""
        ledger = self._ledger(worker)
        ledger.included = included
        old, taken = [], []
        for promise in ledger.prefixes.values():
            is_included = included.get(promise.router, -1) >= promise.number
            if self._is_old(promise, now_s):
                old.append(promise)
            elif is_included:
                taken.append(promise)
            if is_included:
                ledger.drop_load(promise.id)
        for promise in old:
            ledger.drop_load(promise.id)
        ledger.drop_prefixes(old + _kept(taken, are_stored))
        self._show(worker, ledger)

    def forget(self, worker: str) -> None:
        ledger = self._ledgers.pop(worker, None)
        if ledger is not None:
            ledger.clear()
            self._loads.put(self._slots.allot(worker), (0, 0))

    def load_of(self, worker: str) -> PromisedLoad:
        ledger = self._ledgers.get(worker)
        return PromisedLoad(len(ledger.loads), ledger.new_tokens) if ledger else PromisedLoad()

    def load(self) -> PromisedLoad:
        """Of all workers together."""
        ledgers = self._ledgers.values()
        return PromisedLoad(
            sum(len(ledger.loads) for ledger in ledgers), sum(ledger.new_tokens for ledger in ledgers)
        )

    def loads(self, slots: Slotted) -> tuple[Column, Column]:
        """Of each of these workers: sequences, and tokens to compute."""
        num_sequences, new_tokens = self._loads.take(slots)
        return num_sequences, new_tokens

    def match(self, keys: Keys) -> Match:
        """How far from the start of `keys` each worker was promised blocks."""
        return self._index.match(keys)

    def _show(self, worker: str, ledger: _Ledger) -> None:
        self._loads.put(self._slots.allot(worker), (len(ledger.loads), ledger.new_tokens))

    def _is_old(self, promise: Promise, now_s: float) -> bool:
        return now_s - promise.made_s > self._ttl_s

    def _ledger(self, worker: str) -> _Ledger:
        ledger = self._ledgers.get(worker)
        if ledger is None:
            ledger = self._ledgers[worker] = _Ledger(worker, self._index)
        return ledger


def _kept(promises: Sequence[Promise], are_stored: AreStored) -> list[Promise]:
    """Those whose prefix the index has: its last block came last."""
    long = [promise for promise in promises if len(promise.keys)]
    is_stored = are_stored(np.array([promise.keys[-1] for promise in long], np.int64))
    short = [promise for promise in promises if not len(promise.keys)]
    return short + [promise for promise, is_there in zip(long, is_stored, strict=True) if is_there]
