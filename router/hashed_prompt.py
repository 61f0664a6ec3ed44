"""A request's prompt as its block hashes: what the index is asked with, and what other routers hear."""

import asyncio
from itertools import islice

import msgspec
import numpy as np

from proto.blockhash import HASH_BYTES, block_salt, iter_block_hashes
from proto.cards import KvClass
from proto.requests import GenerateRequest
from proto.tokens import count_tokens
from router.block_table import Keys
from router.columns import Column
from router.kv_index import Depths, block_keys

SLICE_BLOCKS = 256  # about half a millisecond of hashing


class HashedPrompt(msgspec.Struct, frozen=True, eq=False):
    """The full blocks of a prompt. `keys[i]` is how the index knows the i-th hash of `hashes`.

    Units: `num_tokens` of prompt and earlier attempts' answer together, `most_hit_tokens` those that need not
    be computed where they are cached; `block_size` in tokens.
    """

    num_tokens: int
    most_hit_tokens: int
    block_size: int
    hashes: bytes
    keys: Keys

    def hit_tokens(self, num_blocks: Depths) -> Column:
        """What workers with so many first blocks need not compute."""
        return np.minimum(num_blocks * self.block_size, self.most_hit_tokens).astype(np.float64)


async def hash_prompt(request: GenerateRequest, kv_class: KvClass) -> HashedPrompt:
    """Hashes what the worker will prefill: the prompt, then what earlier attempts generated.

    Lets the loop turn between slices, so that a long prompt delays nobody else's.
    """
    tokens = request.prompt + request.generated
    salt = block_salt(kv_class.weights_digest, request.salt)
    hashing = iter_block_hashes(tokens, kv_class.block_size, salt)
    hashes = bytearray()
    while piece := b"".join(islice(hashing, SLICE_BLOCKS)):
        hashes += piece
        if len(hashes) >= SLICE_BLOCKS * HASH_BYTES:  # also after the last: to note its choice takes a while
            await asyncio.sleep(0)
    packed, num_tokens = bytes(hashes), count_tokens(tokens)
    most_hit_tokens = 0 if request.wants_scores else max(0, num_tokens - 1)
    return HashedPrompt(num_tokens, most_hit_tokens, kv_class.block_size, packed, block_keys(packed))
