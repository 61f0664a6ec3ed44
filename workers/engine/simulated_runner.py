"""A runner that computes nothing: time from a stated model, tokens from a formula, a pool in real memory."""

import ctypes
import mmap
import time
from typing import Annotated

import msgspec
from msgspec import Meta

from workers.engine.runner import OnLayers, SampledToken, StepBatch

MAX_DEBT_S = 0.01
"""The most that waking late shortens later waits by: a pause of the whole process is not made good."""


class SimulatedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is simulated. `first_token` and `num_tokens` bound the sampled ids: keep end ids out."""

    first_token: Annotated[int, Meta(ge=0, description="Lowest token id that is sampled.")] = 1000
    num_tokens: Annotated[int, Meta(ge=1, description="How many ids, from the lowest, are sampled.")] = 16384
    step_s: Annotated[float, Meta(ge=0, description="Seconds a step takes.")] = 0.0
    prefill_token_s: Annotated[float, Meta(ge=0, description="Seconds more for each token of a prompt.")] = (
        0.0
    )
    num_layers: Annotated[int, Meta(ge=1, description="Layers of the pool.")] = 2
    num_kv_heads: Annotated[int, Meta(ge=1, description="KV heads of the pool.")] = 1
    head_dim: Annotated[int, Meta(ge=1, description="Numbers a head, of four bytes each.")] = 8


class SimulatedRunner:
    """Keeps the contract of `Runner`, but leaves the pool as it is: what lies there comes from peers.

    The sampled token depends on the token before it and its position alone, so any attempt, on any worker, in
    chunks of any size, goes on alike.
    """

    itemsize = 4
    dtype = "float32"
    pool_device = "cpu"

    def __init__(self, model: SimulatedModel, num_blocks: int, block_size: int = 16) -> None:
        self.model = model
        self.num_layers = model.num_layers
        self.num_kv_heads = model.num_kv_heads
        self.head_dim = model.head_dim
        self.block_size = block_size
        self.num_blocks = num_blocks
        block_bytes = model.num_layers * 2 * model.num_kv_heads * block_size * model.head_dim * self.itemsize
        self.pool_bytes = num_blocks * block_bytes
        self._memory = mmap.mmap(-1, self.pool_bytes)
        self._pool = ctypes.c_char.from_buffer(self._memory)  # holds the mapping where it is
        self.pool_address = ctypes.addressof(self._pool)
        self._debt_s = 0.0

    def run(self, batch: StepBatch, on_layers: OnLayers | None) -> list[SampledToken]:
        """See `Runner`. Time passes in equal parts a layer when somebody waits for layers, else at once."""
        step_s = self._step_s(batch)
        if on_layers is None:
            self._wait(step_s)
        else:
            for layer in range(self.num_layers):
                self._wait(step_s / self.num_layers)
                on_layers(layer, 1)
        first, count = self.model.first_token, self.model.num_tokens
        return [
            SampledToken(row.key, first + _mix(row.tokens[-1], row.start + len(row.tokens)) % count)
            for row in batch.rows
            if row.sample is not None
        ]

    def _step_s(self, batch: StepBatch) -> float:
        if not self.model.prefill_token_s:
            return self.model.step_s
        prompt_tokens = sum(len(row.tokens) for row in batch.rows if len(row.tokens) > 1)
        return self.model.step_s + prompt_tokens * self.model.prefill_token_s

    def _wait(self, wait_s: float) -> None:
        """Sleeps to a deadline; how late it woke is taken off the next waits, so that the mean is right."""
        if not wait_s:
            return
        now_s = time.monotonic()
        deadline_s = now_s + wait_s - self._debt_s
        if deadline_s > now_s:
            time.sleep(deadline_s - now_s)
            now_s = time.monotonic()
        self._debt_s = min(now_s - deadline_s, MAX_DEBT_S)


def _mix(token: int, position: int) -> int:
    """A number that looks random and is not. Source: Knuth, TAOCP 6.4, multiplicative hashing."""
    return ((token * 2654435761 + position * 40503) & 0xFFFFFFFF) >> 7
