"""Which worker holds which blocks: the index that every choice starts from.

Two views of one relation are kept: block -> bit mask of its holders, for `match` to ask all workers at once;
and holder -> its blocks, so that forgetting a holder touches its blocks and no others.

`match` walks the prompt and stops where nobody is left. Jumping ahead in the chain would be wrong: a worker
that evicted block 2 may still hold block 5, and only 2 blocks of its prefix are of use. Nor would it gain
much: a step of the walk costs a small part of the hash that was computed for it.
"""

from collections.abc import Collection, Sequence

from proto.blockhash import HASH_BYTES
from proto.errors import InvalidRequest
from proto.events import BlocksStored, KvEvent


def block_keys(hashes: bytes) -> list[int]:
    """The first 8 bytes of each packed hash, as an integer: enough for an index, never for a cache.

    Raises:
        InvalidRequest: the length is no multiple of a hash's.
    """
    if len(hashes) % HASH_BYTES:
        raise InvalidRequest(
            field="hashes", reason=f"{len(hashes)} bytes are no whole number of block hashes"
        )
    return memoryview(hashes).cast("Q")[::2].tolist()


class KvIndex:
    """Blocks and their holders. Memory follows what is held: a block without a holder is not remembered."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._blocks: dict[str, set[int]] = {}
        self._bits: dict[str, int] = {}
        self._workers: dict[int, str] = {}

    @property
    def num_blocks(self) -> int:
        """Distinct blocks held anywhere."""
        return len(self._holders)

    def num_blocks_of(self, worker: str) -> int:
        return len(self._blocks.get(worker, ()))

    def has(self, worker: str, key: int) -> bool:
        return key in self._blocks.get(worker, ())

    def apply(self, worker: str, event: KvEvent) -> None:
        """Takes what `worker` says of its cache; saying it twice changes nothing."""
        keys = block_keys(event.hashes)
        if isinstance(event, BlocksStored):
            self._store(worker, keys)
        else:
            self._remove(worker, keys)

    def keep_only(self, worker: str, held: set[int]) -> None:
        """Of what `worker` is believed to hold, what is not in `held` goes."""
        self._remove(worker, self._blocks.get(worker, set()) - held)

    def forget(self, worker: str) -> None:
        """`worker` holds nothing any more, and its bit is free for another."""
        self._remove(worker, self._blocks.get(worker, set()).copy())
        self._blocks.pop(worker, None)
        self._workers.pop(self._bits.pop(worker, 0), None)

    def match(self, keys: Sequence[int]) -> dict[str, int]:
        """How many blocks from the start of `keys` each worker holds without a hole, where that is any."""
        held, find = sum(self._workers), self._holders.get
        left: list[tuple[int, int]] = []
        for depth, key in enumerate(keys):
            still = held & find(key, 0)
            if still != held:
                left.append((depth, held & ~still))
                held = still
                if not held:
                    break
        else:
            left.append((len(keys), held))
        return self._depths(left)

    def _depths(self, left: list[tuple[int, int]]) -> dict[str, int]:
        """Workers by the depth at which their bit left the walk."""
        depths = {}
        for depth, bits in left:
            rest = bits if depth else 0
            while rest:
                bit = rest & -rest
                depths[self._workers[bit]] = depth
                rest ^= bit
        return depths

    def _store(self, worker: str, keys: Collection[int]) -> None:
        bit = self._bit_of(worker)
        holders, find = self._holders, self._holders.get
        for key in keys:
            holders[key] = find(key, 0) | bit
        self._blocks[worker].update(keys)

    def _remove(self, worker: str, keys: Collection[int]) -> None:
        blocks = self._blocks.get(worker)
        if not blocks:
            return
        bit, holders = self._bits[worker], self._holders
        for key in blocks.intersection(keys):
            rest = holders[key] ^ bit
            if rest:
                holders[key] = rest
            else:
                del holders[key]
        blocks.difference_update(keys)

    def _bit_of(self, worker: str) -> int:
        """The bit of `worker`, the lowest free one when it has none."""
        bit = self._bits.get(worker)
        if bit is None:
            taken = sum(self._bits.values())
            bit = self._bits[worker] = ~taken & (taken + 1)
            self._workers[bit] = worker
            self._blocks[worker] = set()
        return bit
