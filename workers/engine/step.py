"""One step: what was planned, and what its sequences got out of it."""

from typing import Literal, Protocol

import msgspec

from proto.errors import Fault
from proto.layout import LayerRange
from workers.engine.runner import PromptScores, ScheduledSequence
from workers.engine.sequence import Sequence, SequenceKind


class StepPlan(msgspec.Struct, eq=False):
    """`rows[i]` is the work of `sequences[i]`, with `i` as its key. `held` became complete without any work.

    `is_wanted` turns False when nothing of it is: all its sequences are cancelled, or to be frozen before
    they have read their prompts.
    Units: `num_tokens` tokens in all rows, `num_drafts` those of them that are guesses, `prefill_tokens` in
    rows of more than one beside these, `scored_tokens` in those whose tokens' own log-probabilities are
    wanted.
    """

    rows: list[ScheduledSequence] = []
    sequences: list[Sequence] = []
    held: list[Sequence] = []
    num_tokens: int = 0
    num_drafts: int = 0
    prefill_tokens: int = 0
    scored_tokens: int = 0
    is_wanted: bool = True

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.held

    @property
    def num_decodes(self) -> int:
        """Rows of one token, and of drafts."""
        return self.num_tokens - self.num_drafts - self.prefill_tokens

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """A row for the next `num_tokens` tokens; it samples when they are the last of a GENERATE."""
        start = sequence.num_computed
        end = start + num_tokens
        row = ScheduledSequence(
            sequence.tokens[start:end], start, sequence.blocks, None, len(self.rows), _scores(sequence, end)
        )
        if end == len(sequence.tokens) and sequence.spec.kind is SequenceKind.GENERATE:
            row.sample = sequence.spec.sample
            row.counts = sequence.count_tokens()
            row.banned = sequence.banned
            row.num_banned = sequence.num_banned
        self.rows.append(row)
        self.sequences.append(sequence)
        sequence.is_in_step = True
        self.num_tokens += num_tokens
        self.scored_tokens += num_tokens if row.scores is not None else 0
        if num_tokens > 1:
            self.prefill_tokens += num_tokens

    def draft(self, place: int, drafts: list[int]) -> None:
        """Lets row `place` go on with guesses; its sequence has blocks for them."""
        row = self.rows[place]
        row.tokens += drafts
        row.num_drafts = len(drafts)
        self.num_tokens += len(drafts)
        self.num_drafts += len(drafts)


def _scores(sequence: Sequence, end: int) -> PromptScores | None:
    """What is wanted of the tokens from those that are computed to `end` (not included)."""
    if not sequence.wants_scores:
        return None
    num_best = sequence.spec.prompt_logprobs or 0
    return PromptScores(sequence.tokens[sequence.num_computed + 1 : end + 1], num_best)


class SequenceProgress(msgspec.Struct, frozen=True):
    """What a step did for one sequence: new tokens, its one end, or a PREFILL that is complete and held.

    `logprobs` are the records of the tokens, and `prompt_logprobs`, with the first of them, those of the
    prompt's, where they were asked for.

    At most one of `finish`, `fault`, `is_held` and `is_frozen` is set. After the first two the engine has
    forgotten it; the last says, between two steps, that it got all its tokens before and gets no more.
    """

    sequence: str
    tokens: list[int] = []
    finish: Literal["stop", "length"] | None = None
    fault: Fault | None = None
    is_held: bool = False
    is_frozen: bool = False
    logprobs: bytes = b""
    prompt_logprobs: bytes = b""


class StepOutput(msgspec.Struct, frozen=True):
    """The sequences that a step moved visibly, in no order; a chunk in mid-prompt is not among them."""

    events: list[SequenceProgress]


class EngineListener(Protocol):
    """Hears from the engine thread, which waits meanwhile: hand over and return. May call the engine.

    What `on_layers` raises fails the step for all its rows; what `on_step` raises ends the engine.
    """

    def on_step(self, output: StepOutput) -> None:
        """A step is over. A sequence of it may have been cancelled between its end and this call."""
        ...

    def on_layers(
        self, sequence: str, start: int, end: int, blocks: list[int], rank: int, layers: LayerRange
    ) -> None:
        """For rows of a PREFILL, in mid-step: the KV of tokens `start` to `end` (not included) is there.

        `blocks` cover those tokens, and `layers` of them are in the pool of `rank`. The blocks stay the
        sequence's until it is released, cancelled or preempted; what is read from them later is not its KV.
        A preempted PREFILL begins again at what is cached by then, so a range may come twice: it is the last
        write of it that counts, and the listener keeps them in order.
        """
        ...
