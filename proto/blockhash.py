"""The one block hash, for worker and router: chained, keyed BLAKE2b of 128 bits.

`hash_i = H(salt, hash_{i-1}, tokens_i)` over full blocks only, so a hash names a block's tokens and all
tokens before them. The salt separates what must never share KV: models, adapters, tenants.
Source: RFC 7693 (BLAKE2), keyed mode.
"""

from collections.abc import Iterator
from hashlib import blake2b

from proto.tokens import TOKEN_BYTES

HASH_BYTES = 16


def block_salt(model_digest: str, tenant_salt: str = "") -> bytes:
    """The key of the hash: the KV class of the model (its weights' digest) and the tenant's own salt.

    Units: 32 bytes.
    """
    key = blake2b(digest_size=32, person=b"kvmesh.salt")
    for part in (model_digest, tenant_salt):
        data = part.encode()
        key.update(len(data).to_bytes(4, "little"))
        key.update(data)
    return key.digest()


def iter_block_hashes(
    packed_tokens: bytes, block_size: int, salt: bytes, parent: bytes = b""
) -> Iterator[bytes]:
    """Yield the hash of each full block of `packed_tokens`; a partial block at the end has none.

    Args:
        packed_tokens: what `pack_tokens` made; its first token begins a block.
        block_size: tokens a block.
        salt: from `block_salt`.
        parent: the hash of the block before the first one, empty at the start of a prompt.
    """
    step = block_size * TOKEN_BYTES
    begin = blake2b(digest_size=HASH_BYTES, key=salt).copy  # a third of the cost of a new keyed state
    for start in range(0, len(packed_tokens) - step + 1, step):
        state = begin()
        state.update(parent + packed_tokens[start : start + step])
        parent = state.digest()
        yield parent


def block_hashes(packed_tokens: bytes, block_size: int, salt: bytes, parent: bytes = b"") -> list[bytes]:
    """All of `iter_block_hashes` at once; long prompts are better sliced."""
    return list(iter_block_hashes(packed_tokens, block_size, salt, parent))
