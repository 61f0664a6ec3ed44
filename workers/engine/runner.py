"""The contract between the scheduler and what computes: one step in, results out; torch-free."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import msgspec

from proto.layout import PoolLayout
from workers.engine.token_counts import TokenCounts

OnLayers = Callable[[int, int, int], None]
"""Called as `on_layers(rank, first_layer, num_layers)`: the KV of this step for these layers, as the model
numbers them, is in the pool of this rank."""


IsWanted = Callable[[], bool]
"""Whether anybody still wants the step that runs."""


def always_wanted() -> bool:
    return True


class StepAbandoned(Exception):
    """Raised by `Runner.run`: nobody wanted the step any more. What it wrote to the pool means nothing."""


class RunnerEnded(Exception):
    """Raised by `Runner.run`: it can compute nothing any more. Its engine ends, with all that it serves."""


class SampleParams(msgspec.Struct, frozen=True):
    """How one sequence draws its tokens, for all its life.

    `temperature` 0 is greedy: of what the penalties and `bias` leave, the likeliest. `top_k` 0 keeps the
    whole vocabulary, `min_p` what is at least so likely against the likeliest. Presence and frequency
    penalties are taken off the logits of generated tokens, once and as often as they came; `repetition`
    divides positive and multiplies negative logits of all tokens of the sequence. `bias` is added, by token.
    `logprobs`: how many of the likeliest tokens to name with each drawn one's log-probability; None: say
    nothing of it. A draw depends on `seed` and the position of the token alone, so a sequence without a seed
    of its own is given one by its scheduler, once, and keeps it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: dict[int, float] = {}
    logprobs: int | None = None

    @property
    def penalises(self) -> bool:
        """Whether a draw depends on which tokens came before."""
        return bool(self.presence or self.frequency or self.repetition != 1.0)


class PromptScores(msgspec.Struct, frozen=True):
    """The log-probabilities that are wanted of a row's tokens, as the model sees them.

    `targets[i]` is the token that follows `tokens[i]` of the row: it is told what that one was worth there,
    beside the `num_best` likeliest.
    """

    targets: list[int]
    num_best: int


class ScheduledSequence(msgspec.Struct):
    """One row of a step.

    `tokens` are computed in this step: a chunk of a prompt, or the one last token. `start` is the position of
    `tokens[0]`, which is also how many tokens of the sequence are in the pool already. `blocks` is its block
    table, long enough for `start + len(tokens)` tokens. `sample` is None when no token is wanted: a chunk in
    the middle of a prompt, or a job that only fills KV. `key` comes back in `RowResult`.

    The last `num_drafts` of `tokens` are guesses at what comes after the others: a token is drawn after the
    others and after each guess, as if the guesses before were the sequence's own, and given as far as they
    were. A row whose tokens are scored has no drafts, nor has one without `sample`.

    What else a draw heeds: `counts` of the tokens so far, when `sample` penalises; `banned` tokens, which
    must not be among the first `num_banned` that are drawn; `allowed`, a bit for each token that may come
    (token t: bit t % 32 of the little-endian 32-bit word t // 32; all that lies beyond its end may not), with
    which there are no drafts. A ban that leaves nothing of what is allowed does not hold.
    """

    tokens: list[int]
    start: int
    blocks: list[int]
    sample: SampleParams | None
    key: int
    scores: PromptScores | None = None
    counts: TokenCounts | None = None
    banned: frozenset[int] = frozenset()
    allowed: bytes | None = None
    num_drafts: int = 0
    num_banned: int = 1

    @property
    def num_draws(self) -> int:
        return 0 if self.sample is None else 1 + self.num_drafts

    @property
    def num_logits(self) -> int:
        """Its last so many tokens' logits are needed: those to be scored, and those to be drawn from."""
        num_scored = len(self.scores.targets) if self.scores is not None else 0
        return num_scored + self.num_draws

    @property
    def num_given(self) -> int:
        """How many of its tokens are the sequence's own: all but the drafts."""
        return len(self.tokens) - self.num_drafts

    @property
    def drafts(self) -> list[int]:
        return self.tokens[self.num_given :]


class StepBatch(msgspec.Struct):
    """What one step computes. No two rows write to the same block.

    What its rows are `allowed` may be found out while the model computes: whoever draws waits for it first.
    """

    rows: list[ScheduledSequence]
    masks: Future[None] | None = None

    def wait_masks(self) -> None:
        if self.masks is not None:
            self.masks.result()


class RowResult(msgspec.Struct, frozen=True):
    """What the row with this key gave.

    `tokens` follow its last one that is no draft; none when none was wanted, and each but the last is the
    draft in its place. `logprobs` are their records and `prompt_logprobs` those of the scored targets, both
    packed (`proto.logprobs`), where they were asked for.
    `failed`: the row's logits were not finite, so the rest means nothing; the other rows are sound.
    """

    key: int
    tokens: list[int] = []
    logprobs: bytes = b""
    prompt_logprobs: bytes = b""
    failed: bool = False


class Runner(Protocol):
    """Computes steps over pools of KV blocks that it owns. Called from one thread.

    `pools` are those of its ranks, in their order; the first is of this process. They have all `num_blocks`
    blocks, which mean the same tokens in each, and stay where they are for the runner's life.
    """

    dtype: str
    block_size: int
    num_blocks: int
    pools: tuple[PoolLayout, ...]

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        """Computes one step: a result for each row that wants a token or scores, in the order of the rows.

        Mutates: the pools, at the places of this step's tokens and nowhere else. `on_layers` is called until
        every layer of every rank was named once, those of one rank in rising order; by the return it was, by
        one thread at a time. What it raises ends the step.

        Raises:
            StepAbandoned: `is_wanted`, asked between two layers, said no. Who cannot stop there need not ask.
            RunnerEnded: neither this step nor another will ever be computed.
        """
        ...
