"""What one row of logits is for: the draw of one token; and which of a row's draws count."""

from collections.abc import Sequence

import msgspec

from workers.engine.runner import RowResult, SampleParams, ScheduledSequence
from workers.engine.token_counts import Counted


class Draw(msgspec.Struct, frozen=True):
    """The token at `position` of the sequence with this key. What else it heeds: see `ScheduledSequence`.

    A sequence may have several in a step, one after the other, each with a row of logits of its own.
    """

    key: int
    params: SampleParams
    position: int
    counts: Counted | None = None
    banned: frozenset[int] = frozenset()
    allowed: bytes | None = None

    @property
    def is_edited(self) -> bool:
        """Whether its logits are changed before it is drawn."""
        return bool(self.params.bias or self.banned or self.counts is not None or self.allowed is not None)


def draws_of(row: ScheduledSequence) -> list[Draw]:
    """The draws of the tokens that follow `row` but for its drafts, and each of these."""
    if row.sample is None:
        return []
    first = row.start + row.num_given
    return [
        Draw(
            row.key,
            row.sample,
            first + place,
            None if row.counts is None else row.counts.after(row.drafts[:place]),
            row.banned if place < row.num_banned else frozenset(),
            row.allowed,
        )
        for place in range(row.num_draws)
    ]


def accept(row: ScheduledSequence, drawn: Sequence[RowResult]) -> RowResult:
    """What a row gives: what was drawn up to the first that is another token than the draft in its place.

    A draw depends on the tokens before it, its parameters and its position alone. So each that is given is
    what a step without drafts would have drawn there, whatever the sampler, and whoever guessed. One that
    failed is not given: a step of its own is to say so, unless it is the first.
    """
    num_given = 0
    for result, draft in zip(drawn, (*row.drafts, None), strict=True):
        if result.failed:
            break
        num_given += 1
        if result.tokens != [draft]:
            break
    if num_given <= 1:
        return drawn[0]
    given = drawn[:num_given]
    tokens = [token for result in given for token in result.tokens]
    return RowResult(row.key, tokens, b"".join(result.logprobs for result in given))
