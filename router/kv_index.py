"""Which worker holds which blocks: the index that every choice starts from.

Two views of one relation are kept: block -> bit mask of its holders, for `match` to ask all workers at once;
and holder -> its blocks, so that forgetting a holder touches its blocks and no others.

`match` walks the prompt and stops where nobody is left. Jumping ahead in the chain would be wrong: a worker
that evicted block 2 may still hold block 5, and only 2 blocks of its prefix are of use. Nor would it gain
much: a step of the walk costs a small part of the hash that was computed for it.
"""

from collections.abc import Collection, Iterable, Sequence, Set

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
        self._leavings: dict[int, set[int]] = {}  # of forgotten workers, by bit, until they are swept

    @property
    def num_blocks(self) -> int:
        """Distinct blocks held anywhere; what is left of forgotten workers counts until it is swept."""
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
            self.remove(worker, keys)

    def keys_of(self, worker: str) -> Set[int]:
        """What `worker` is believed to hold; it changes with the index."""
        return self._blocks.get(worker, frozenset())

    def forget(self, worker: str) -> None:
        """`worker` holds nothing any more, at once; what is left of it is for `sweep`."""
        bit, blocks = self._bits.pop(worker, 0), self._blocks.pop(worker, None)
        if self._workers.pop(bit, None) is not None and blocks is not None:
            self._leavings[bit] = blocks

    def sweep(self, limit: int) -> bool:
        """Drops `limit` blocks at most that only forgotten workers held; whether there are more.

        A worker's million blocks take most of a second to drop, which the loop must not lose at once.
        """
        for bit, blocks in self._leavings.items():
            self._drop([blocks.pop() for _ in range(min(limit, len(blocks)))], bit)
            if not blocks:
                del self._leavings[bit]  # its bit is free for another
            break
        return bool(self._leavings)

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

    def remove(self, worker: str, keys: Collection[int]) -> None:
        """`worker` does not hold these."""
        blocks = self._blocks.get(worker)
        if not blocks:
            return
        self._drop(blocks.intersection(keys), self._bits[worker])
        blocks.difference_update(keys)

    def _drop(self, keys: Iterable[int], bit: int) -> None:
        """Takes `bit` out of each of `keys`, all of which have it."""
        holders = self._holders
        for key in keys:
            rest = holders[key] ^ bit
            if rest:
                holders[key] = rest
            else:
                del holders[key]

    def _bit_of(self, worker: str) -> int:
        """The bit of `worker`, the lowest free one when it has none."""
        bit = self._bits.get(worker)
        if bit is None:
            taken = sum(self._bits.values()) + sum(self._leavings)
            bit = self._bits[worker] = ~taken & (taken + 1)
            self._workers[bit] = worker
            self._blocks[worker] = set()
        return bit
