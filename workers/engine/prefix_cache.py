"""Which block holds which hash, and what changed since somebody last asked.

The cache names blocks; who may use or evict them is the block pool's affair. One block a hash: a second copy
of the same tokens stays its sequence's own and is never named here.
"""

from collections.abc import Sequence

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
        self._note(key, BlocksStored)

    def forget(self, block: int) -> None:
        """Takes the name of `block` away; one without a name stays so."""
        key = self._hash_of[block]
        if key is None:
            return
        self._hash_of[block] = None
        del self._block_of[key]
        self._note(key, BlocksRemoved)

    def take_events(self) -> list[KvEvent]:
        """What changed since the last call, in order, neighbours of a kind in one event."""
        changes, self._changes = self._changes, {}
        runs: list[tuple[type[KvEvent], list[bytes]]] = []
        for key, kind in changes.items():
            if not runs or runs[-1][0] is not kind or len(runs[-1][1]) == MAX_EVENT_HASHES:
                runs.append((kind, []))
            runs[-1][1].append(key)
        return [kind(pack_hashes(keys)) for kind, keys in runs]

    def _note(self, key: bytes, kind: type[KvEvent]) -> None:
        if self._changes.pop(key, kind) is kind:
            self._changes[key] = kind
