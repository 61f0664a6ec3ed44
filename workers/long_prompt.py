"""A long prompt read in slices, between which the event loop turns: its tokens, and its blocks' hashes."""

import asyncio

import msgspec

from proto.blockhash import block_salt, iter_block_hashes
from proto.cards import KvClass
from proto.errors import InvalidRequest
from proto.requests import GenerateRequest
from proto.tokens import TOKEN_BYTES, count_tokens, pack_tokens, unpack_tokens

LONG_BYTES = 8192 * TOKEN_BYTES
"""From here on a request is read so. What is shorter takes the loop half a millisecond."""
_SLICE_BLOCKS = 128


class ReadPrompt(msgspec.Struct, frozen=True):
    """`tokens` of prompt and earlier attempts' answer together, `hashes` of their full blocks."""

    tokens: list[int]
    hashes: list[bytes]


def is_long(request: GenerateRequest) -> bool:
    return len(request.prompt) + len(request.generated) >= LONG_BYTES


async def read_prompt(request: GenerateRequest, kv_class: KvClass) -> ReadPrompt:
    """What `unpack_tokens` and a `HashChain` make of it, a fifth of a millisecond at a time.

    Raises:
        InvalidRequest: no whole number of tokens.
    """
    for field, data in (("prompt", request.prompt), ("generated", request.generated)):
        if len(data) % TOKEN_BYTES:
            raise InvalidRequest(field=field, reason=f"{len(data)} bytes are no whole number of token ids")
    packed, salt = request.prompt + request.generated, block_salt(kv_class.weights_digest, request.salt)
    step = _SLICE_BLOCKS * kv_class.block_size * TOKEN_BYTES
    tokens: list[int] = []
    hashes: list[bytes] = []
    for start in range(0, len(packed), step):
        piece, parent = packed[start : start + step], hashes[-1] if hashes else b""
        tokens += unpack_tokens(piece)
        hashes += iter_block_hashes(piece, kv_class.block_size, salt, parent)
        await asyncio.sleep(0)
    return ReadPrompt(tokens, hashes)


def pack_first(end: int, request: GenerateRequest, tokens: list[int]) -> bytes:
    """The first `end` of `tokens`, which begin with those of `request`: these came packed."""
    packed = request.prompt + request.generated
    return (packed + pack_tokens(tokens[count_tokens(packed) : end]))[: end * TOKEN_BYTES]
