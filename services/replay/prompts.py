"""Prompts for the blocks of a trace: equal hash ids give equal tokens, others give others."""

import functools
import hashlib
import struct

import msgspec

from services.replay.trace import BLOCK_TOKENS, TraceRequest

_NUM_KEPT = 4096
_WORDS = struct.Struct(f"<{BLOCK_TOKENS}I")


class PromptMaker:
    """Prompts of token ids below `vocab_size`. Another `seed`: other tokens, which no cache has yet."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._block_json = functools.lru_cache(_NUM_KEPT)(self._make_block_json)

    def tokens(self, request: TraceRequest) -> list[int]:
        run = [token for block in request.hash_ids for token in self._block(block)]
        return run[: request.input_length]

    def as_json(self, request: TraceRequest) -> bytes:
        """`tokens` as a JSON array. A whole block's JSON is kept for the next prompt that has it."""
        num_full, num_cut = divmod(request.input_length, BLOCK_TOKENS)
        parts = [self._block_json(block) for block in request.hash_ids[:num_full]]
        if num_cut:
            parts.append(_bare_json(self._block(request.hash_ids[num_full])[:num_cut]))
        return b"[" + b",".join(parts) + b"]"

    def _block(self, block: int) -> list[int]:
        noise = hashlib.shake_128(b"%d/%d" % (self._seed, block)).digest(_WORDS.size)
        return [word % self._vocab_size for word in _WORDS.unpack(noise)]

    def _make_block_json(self, block: int) -> bytes:
        return _bare_json(self._block(block))


def _bare_json(tokens: list[int]) -> bytes:
    """Without its brackets."""
    return msgspec.json.encode(tokens)[1:-1]
