"""Which blocks each sequence owns, and how it comes by them: claimed from the cache, allocated, or landed."""

from workers.engine.block_pool import BlockPool
from workers.engine.hash_chain import HashChain
from workers.engine.prefix_cache import PrefixCache
from workers.engine.sequence import Sequence, SequenceState

HASH_SLICE = 32
"""Blocks hashed at once while looking for a prefix: a cold prompt costs one slice, not its whole length."""


class BlockLedger:
    """The pool and the cache of one engine, and the moves of blocks between them and sequences."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.cache = PrefixCache(num_blocks)
        self.pool = BlockPool(num_blocks, self.cache)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, chain: HashChain, max_tokens: int) -> list[int]:
        """The blocks of the longest cached prefix of at most `max_tokens` tokens.

        Mutates: `chain`, whose hashes are extended no further than a slice past the first miss.
        """
        limit = max_tokens // self.block_size
        found = self.cache.match(chain.hashes[:limit])
        while len(found) == len(chain.hashes) < limit:
            chain.extend(min(limit, len(found) + HASH_SLICE))
            found += self.cache.match(chain.hashes[len(found) : limit])
        return found

    def find_claim(self, sequence: Sequence) -> list[int]:
        """The cached blocks that would follow those `sequence` owns; none when it ends within a block."""
        if sequence.num_computed != len(sequence.blocks) * self.block_size:
            return []
        return self.match(sequence.chain, sequence.max_cached_tokens)[len(sequence.blocks) :]

    def admission_cost(self, sequence: Sequence, claim: list[int]) -> int:
        """How many available blocks `claim` and then room for all tokens of `sequence` take."""
        missing = self.blocks_for(len(sequence.tokens)) - len(sequence.blocks) - len(claim)
        return missing + self.pool.count_idle(claim)

    def claim(self, sequence: Sequence, claim: list[int]) -> None:
        """Makes `sequence` one of the owners of cached blocks, whose tokens it need not compute."""
        if not claim:
            return
        self.pool.share(claim)
        sequence.blocks.extend(claim)
        sequence.num_stored = len(sequence.blocks)
        sequence.num_computed = sequence.num_stored * self.block_size

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Room for `num_tokens` tokens in all; the caller has seen that so many blocks are available."""
        missing = self.blocks_for(num_tokens) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks.extend(self.pool.allocate(missing))

    def land(self, sequence: Sequence, blocks: list[int], end: int) -> None:
        """Blocks that were set aside become those of `sequence`, with the KV of its tokens up to `end`."""
        self.pool.adopt(blocks)
        sequence.blocks.extend(blocks)
        sequence.num_computed = end
        self.store(sequence)

    def settled(self, sequence: Sequence) -> list[int]:
        """The blocks of `sequence` whose KV changes no more: full ones, and of a frozen one the last, too."""
        is_frozen = sequence.state is SequenceState.FROZEN
        num_computed = sequence.num_computed
        return sequence.blocks[
            : self.blocks_for(num_computed) if is_frozen else num_computed // self.block_size
        ]

    def store(self, sequence: Sequence) -> None:
        """Offers the blocks that have become full of computed KV to the cache."""
        first, full = sequence.num_stored, sequence.num_computed // self.block_size
        if first >= full:
            return
        sequence.chain.extend(full)
        for index in range(first, full):
            self.cache.store(sequence.chain.hashes[index], sequence.blocks[index])
        sequence.num_stored = full

    def trim(self, sequence: Sequence) -> None:
        """Takes the blocks that no computed token of `sequence` lies in: they were there for drafts."""
        num_blocks = self.blocks_for(sequence.num_computed)
        self.pool.free(sequence.blocks[num_blocks:])
        del sequence.blocks[num_blocks:]

    def strip(self, sequence: Sequence) -> None:
        """Takes all blocks from `sequence`; what the cache named stays reusable."""
        self.pool.free(sequence.blocks)
        sequence.blocks.clear()
        sequence.num_computed = 0
        sequence.num_stored = 0

    def disown(self, sequence: Sequence) -> None:
        """As `strip`, and the cache forgets the blocks: their KV is not sound, nobody else shall use it."""
        self.cache.forget(sequence.blocks)
        self.strip(sequence)
