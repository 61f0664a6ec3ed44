"""Some tokens of one sequence, as a step computes them; torch-free."""

from collections.abc import Sequence

import msgspec


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Some tokens of one sequence, the first at position `start`; `blocks` is the sequence's block table.

    The logits of its last `num_logits` tokens are wanted.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_logits: int

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)
