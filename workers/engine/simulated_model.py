"""What is simulated: how long a step takes, and which tokens it samples. One model for all who simulate.

```
 step = ( step_s
        + for each sequence that decodes:  sequence_s + context_token_s * its tokens
                                           + prefill_token_s * its drafts
        + for each token of a prompt:      prefill_token_s * (1 + its position / prefill_doubling_tokens)
        ) * slowness / speed_up * (1 ± jitter)
```
The defaults are roughly a model of eight billion parameters on one large GPU.
"""

import math
import random
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.layout import PoolLayout
from proto.logprobs import TokenLogprobs, pack_logprobs
from workers.engine.draw import accept
from workers.engine.runner import RowResult, SampleParams, ScheduledSequence


class SimulatedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is simulated. `first_token` and `num_tokens` bound the sampled ids: keep end ids out."""

    first_token: Annotated[int, Meta(ge=0, description="Lowest token id that is sampled.")] = 1000
    num_tokens: Annotated[int, Meta(ge=1, description="How many ids, from the lowest, are sampled.")] = 16384
    step_s: Annotated[float, Meta(ge=0, description="Seconds a step takes at least.")] = 0.006
    sequence_s: Annotated[
        float, Meta(ge=0, description="Seconds more for each sequence that decodes in it.")
    ] = 0.00002
    context_token_s: Annotated[
        float, Meta(ge=0, description="Seconds more for each token of context that these sequences have.")
    ] = 0.00000004
    prefill_token_s: Annotated[float, Meta(ge=0, description="Seconds more for each token of a prompt.")] = (
        0.00005
    )
    prefill_doubling_tokens: Annotated[
        int, Meta(ge=0, description="Position at which a token of a prompt takes twice as long; 0: nowhere.")
    ] = 32768
    jitter: Annotated[
        float, Meta(ge=0, lt=1, description="Share by which a step may be longer or shorter, at random.")
    ] = 0.0
    speed_up: Annotated[float, Meta(gt=0, description="How many times faster than stated all is.")] = 1.0
    slowness: Annotated[
        float, Meta(gt=0, description="How many times slower a worker is, until it is told otherwise.")
    ] = 1.0
    num_layers: Annotated[int, Meta(ge=1, description="Layers of the pool.")] = 2
    num_kv_heads: Annotated[int, Meta(ge=1, description="KV heads of the pool.")] = 1
    head_dim: Annotated[int, Meta(ge=1, description="Numbers a head, of four bytes each.")] = 8


DTYPE = "float32"
_ITEM_BYTES = 4

WITHOUT_TIME = SimulatedModel(step_s=0.0, sequence_s=0.0, context_token_s=0.0, prefill_token_s=0.0)


def simulated_pool(model: SimulatedModel, num_blocks: int, block_size: int, address: int = 0) -> PoolLayout:
    """The pool of a worker that simulates `model`: of one rank, in this process."""
    return PoolLayout(
        address=address,
        num_blocks=num_blocks,
        block_size=block_size,
        first_layer=0,
        num_layers=model.num_layers,
        first_head=0,
        num_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=DTYPE,
        item_bytes=_ITEM_BYTES,
    )


class SimulatedTime:
    """How long the steps of one worker take. `slowness` may change, and counts from the next step on.

    Args: `seed` names the worker: its jitter is the same in every run.
    """

    def __init__(self, model: SimulatedModel, seed: str) -> None:
        self.slowness = model.slowness
        self._model = model
        self._random = random.Random(seed)

    def step_s(self, rows: Sequence[ScheduledSequence]) -> float:
        """Seconds that a step of these rows takes."""
        model = self._model
        step_s = model.step_s + sum(self._row_s(row) for row in rows)
        swing = 1.0 + model.jitter * self._random.uniform(-1.0, 1.0) if model.jitter else 1.0
        return step_s * swing * self.slowness / model.speed_up

    def _row_s(self, row: ScheduledSequence) -> float:
        model, num_tokens = self._model, len(row.tokens)
        if row.num_given == 1:
            return (
                model.sequence_s
                + model.context_token_s * (row.start + 1)
                + model.prefill_token_s * row.num_drafts
            )
        prefill_s = model.prefill_token_s * num_tokens
        if model.prefill_doubling_tokens:
            prefill_s *= 1.0 + (row.start + num_tokens / 2) / model.prefill_doubling_tokens
        return prefill_s


def answer(model: SimulatedModel, rows: Sequence[ScheduledSequence]) -> list[RowResult]:
    """A result for each row that wants a token or scores.

    A token depends on the token before it and its position alone, so any attempt, on any worker, in chunks of
    any size, goes on alike. Of what a request may say of its draws only the ban of ends is heeded. Each token
    is said to have half of all probability, and the likeliest after it each half of what is left.
    """
    return [_answer_row(model, row) for row in rows if row.num_logits]


def _answer_row(model: SimulatedModel, row: ScheduledSequence) -> RowResult:
    scores = row.scores
    prompt_logprobs = b"" if scores is None else _records(scores.targets, scores.num_best)
    if row.sample is None:
        return RowResult(row.key, prompt_logprobs=prompt_logprobs)
    drawn = accept(row, [_draw(model, row, place, row.sample) for place in range(row.num_draws)])
    return RowResult(row.key, drawn.tokens, drawn.logprobs, prompt_logprobs)


def _draw(model: SimulatedModel, row: ScheduledSequence, place: int, params: SampleParams) -> RowResult:
    """The token after the first `place` drafts."""
    end = row.num_given + place
    first, count = model.first_token, model.num_tokens
    number = _mix(row.tokens[end - 1], row.start + end)
    banned = row.banned if place < row.num_banned else frozenset()
    tokens = (first + (number + step) % count for step in range(count))
    token = next((each for each in tokens if each not in banned), first + number % count)
    return RowResult(row.key, [token], b"" if params.logprobs is None else _records([token], params.logprobs))


def _records(tokens: Sequence[int], num_best: int) -> bytes:
    half = math.log(0.5)
    return pack_logprobs(
        [
            TokenLogprobs(half, 1, [(token + place, half * (1 + place)) for place in range(num_best)])
            for token in tokens
        ]
    )


def _mix(token: int, position: int) -> int:
    """A number that looks random and is not. Source: Knuth, TAOCP 6.4, multiplicative hashing."""
    return ((token * 2654435761 + position * 40503) & 0xFFFFFFFF) >> 7
