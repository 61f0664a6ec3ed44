"""The contract between the scheduler and what computes: one step in, sampled tokens out; torch-free."""

from collections.abc import Callable
from typing import Protocol

import msgspec

OnLayers = Callable[[int, int], None]
"""Called as `on_layers(first_layer, num_layers)`: the KV of this step for these layers is in the pool."""


class SampleParams(msgspec.Struct, frozen=True):
    """How one sequence draws its next token.

    `temperature` 0 is greedy and ignores the rest. `top_k` 0 keeps the whole vocabulary. A draw depends on
    `seed` and the position of the sampled token alone, so a sequence without a seed of its own is given one
    by its scheduler, once, and keeps it for life.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class ScheduledSequence(msgspec.Struct):
    """One row of a step.

    `tokens` are computed in this step: a chunk of a prompt, or the one last token. `start` is the position of
    `tokens[0]`, which is also how many tokens of the sequence are in the pool already. `blocks` is its block
    table, long enough for `start + len(tokens)` tokens. `sample` is None when no token is wanted: a chunk in
    the middle of a prompt, or a job that only fills KV. `key` comes back in `SampledToken`.
    """

    tokens: list[int]
    start: int
    blocks: list[int]
    sample: SampleParams | None
    key: int


class StepBatch(msgspec.Struct):
    """What one step computes. No two rows write to the same block."""

    rows: list[ScheduledSequence]


class SampledToken(msgspec.Struct, frozen=True):
    """The token at position `start + len(tokens)` of the row with this key.

    `failed`: the row's logits were not finite, so `token` means nothing; the other rows are sound.
    """

    key: int
    token: int
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

    def run(self, batch: StepBatch, on_layers: OnLayers | None) -> list[SampledToken]:
        """Computes one step and samples for the rows that want a token, in the order of the rows.

        Mutates: the pool, at the places of this step's tokens and nowhere else. `on_layers` is called in
        rising order, from this call, until every layer was named once; what it raises ends the step.
        """
        ...
