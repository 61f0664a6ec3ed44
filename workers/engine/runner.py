"""The contract between the scheduler and what computes: one step in, results out; torch-free."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import msgspec

from workers.engine.token_counts import TokenCounts

OnLayers = Callable[[int, int], None]
"""Called as `on_layers(first_layer, num_layers)`: the KV of this step for these layers is in the pool."""


IsWanted = Callable[[], bool]
"""Whether anybody still wants the step that runs."""


def always_wanted() -> bool:
    return True


class StepAbandoned(Exception):
    """Raised by `Runner.run`: nobody wanted the step any more. What it wrote to the pool means nothing."""


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

    What else a draw heeds: `counts` of the tokens so far, when `sample` penalises; `banned` tokens, which
    must not come yet; `allowed`, a bit for each token that may come (token t: bit t % 32 of the little-endian
    32-bit word t // 32; all that lies beyond its end may not). A ban that leaves nothing of what is allowed
    does not hold.
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

    @property
    def num_logits(self) -> int:
        """Its last so many tokens' logits are needed: those that are scored, and the one that is sampled."""
        num_scored = len(self.scores.targets) if self.scores is not None else 0
        return num_scored + (self.sample is not None)


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

    `tokens` follow its last one; none when none was wanted. `logprobs` are their records and
    `prompt_logprobs` those of the scored targets, both packed (`proto.logprobs`), where they were asked for.
    `failed`: the row's logits were not finite, so the rest means nothing; the other rows are sound.
    """

    key: int
    tokens: list[int] = []
    logprobs: bytes = b""
    prompt_logprobs: bytes = b""
    failed: bool = False


class Runner(Protocol):
    """Computes steps over a pool of KV blocks that it owns. Called from one thread.

    The pool is one block-major region of `pool_bytes` bytes at `pool_address` on `pool_device` (`cpu`,
    `cuda:0`): `[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]`, `itemsize` bytes an element,
    named by `dtype` (`float32`, `bfloat16`, `float16`). It stays where it is for the runner's life.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    itemsize: int
    dtype: str
    block_size: int
    num_blocks: int
    pool_address: int
    pool_bytes: int
    pool_device: str

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        """Computes one step: a result for each row that wants a token or scores, in the order of the rows.

        Mutates: the pool, at the places of this step's tokens and nowhere else. `on_layers` is called in
        rising order, from this call, until every layer was named once; what it raises ends the step.

        Raises:
            StepAbandoned: `is_wanted`, asked between two layers, said no. Who cannot stop there need not ask.
        """
        ...
