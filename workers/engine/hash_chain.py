"""The block hashes of one growing run of tokens, computed when first asked for and never twice."""

from collections.abc import Iterable

from proto.blockhash import iter_block_hashes
from proto.tokens import pack_tokens


class HashChain:
    """`hashes[i]` names block `i` of `tokens`. The list of tokens is its sequence's own and may grow.

    Args: `known`: hashes of its first blocks, if somebody has them already.
    """

    __slots__ = ("block_size", "hashes", "salt", "tokens")

    def __init__(self, tokens: list[int], salt: bytes, block_size: int, known: Iterable[bytes] = ()) -> None:
        self.tokens = tokens
        self.salt = salt
        self.block_size = block_size
        self.hashes = list(known)

    def extend(self, num_blocks: int) -> None:
        """Hashes up to `num_blocks` blocks, all of which must be full.

        Raises:
            InvalidRequest: a token does not fit into 32 bits.
        """
        first = len(self.hashes)
        if first >= num_blocks:
            return
        packed = pack_tokens(self.tokens[first * self.block_size : num_blocks * self.block_size])
        parent = self.hashes[-1] if self.hashes else b""
        self.hashes.extend(iter_block_hashes(packed, self.block_size, self.salt, parent))
