"""What one row of logits is for: the draw of one token."""

import msgspec

from workers.engine.runner import SampleParams, ScheduledSequence
from workers.engine.token_counts import TokenCounts


class Draw(msgspec.Struct, frozen=True):
    """The token at `position` of the sequence with this key. What else it heeds: see `ScheduledSequence`.

    A sequence may have several in a step, one after the other, each with a row of logits of its own.
    """

    key: int
    params: SampleParams
    position: int
    counts: TokenCounts | None = None
    banned: frozenset[int] = frozenset()
    allowed: bytes | None = None

    @property
    def is_edited(self) -> bool:
        """Whether its logits are changed before it is drawn."""
        return bool(self.params.bias or self.banned or self.counts is not None or self.allowed is not None)


def draw_of(row: ScheduledSequence, params: SampleParams) -> Draw:
    """The draw of the token that follows `row`."""
    position = row.start + len(row.tokens)
    return Draw(row.key, params, position, row.counts, row.banned, row.allowed)
