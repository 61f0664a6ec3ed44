"""Which block holds which hash, and what changed since somebody last asked.

The cache names blocks; who may use or evict them is the block pool's affair. One block a hash: a second copy
of the same tokens stays its sequence's own and is never named here.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from proto.events import BlocksRemoved, BlocksStored, KvEvent, pack_hashes

MAX_EVENT_HASHES = 512


class PrefixCache:
    """Hash to block and back. Reading (`match`, `has`) is safe from any thread, changing is not."""

    def __init__(self, num_blocks: int) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_blocks
        # Net changes: a hash stored and removed again since the last take is in neither state, so this never
        # holds more than twice the pool, however long nobody takes.
        self._changes: dict[bytes, type[KvEvent]] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def has(self, block: int) -> bool:
        """Whether `block` is the cached copy of some hash."""
        return self._hash_of[block] is not None

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of `hashes`."""
        found: list[int] = []
        block_of = self._block_of
        for key in hashes:
            block = block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def store(self, key: bytes, block: int) -> None:
        """Names `block`, whose KV is computed, unless another block has that hash already."""
        if key in self._block_of:
            return
        self._block_of[key] = block
        self._hash_of[block] = key
        if self._changes.pop(key, BlocksStored) is BlocksStored:
            self._changes[key] = BlocksStored

    def forget(self, blocks: Iterable[int]) -> None:
        """Takes the names of `blocks` away, of thousands for a long prompt; those without stay so."""
        hash_of, block_of, changes = self._hash_of, self._block_of, self._changes
        for block in blocks:
            key = hash_of[block]
            if key is not None:
                hash_of[block] = None
                del block_of[key]
                if changes.pop(key, BlocksRemoved) is BlocksRemoved:
                    changes[key] = BlocksRemoved

    def take_events(self) -> list[KvEvent]:
        """What changed since the last call, in order, neighbours of a kind in one event."""
        changes, self._changes = self._changes, {}
        events: list[KvEvent] = []
        for kind, alike in groupby(changes, changes.__getitem__):
            while keys := list(islice(alike, MAX_EVENT_HASHES)):
                events.append(kind(pack_hashes(keys)))
        return events
