"""A runner that computes nothing: time and tokens from a stated model, a pool in real memory."""

import ctypes
import mmap
import time

from proto.layout import PoolLayout
from workers.engine.runner import (
    IsWanted,
    OnLayers,
    RowResult,
    ScheduledSequence,
    StepAbandoned,
    StepBatch,
    always_wanted,
)
from workers.engine.simulated_model import DTYPE, SimulatedModel, SimulatedTime, answer, simulated_pool

LONG_STEP_S = 0.05
"""From here on a step is worth being abandoned in its midst."""
MAX_DEBT_S = 0.01
"""The most that waking late shortens later waits by: a pause of the whole process is not made good."""

LEAVE_S = 0.0015
"""What first tokens have to leave in when steps take no time: kernels let go of the interpreter, and without
them those of a lone request would wait for all that follow."""


class SimulatedRunner:
    """Keeps the contract of `Runner`, but leaves the pool as it is: what lies there comes from peers."""

    dtype = DTYPE

    def __init__(self, model: SimulatedModel, num_blocks: int, block_size: int = 16, seed: str = "") -> None:
        self.model = model
        self.time = SimulatedTime(model, seed)
        self.num_layers = model.num_layers
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._memory = mmap.mmap(-1, simulated_pool(model, num_blocks, block_size).pool_bytes)
        self._pool = ctypes.c_char.from_buffer(self._memory)  # holds the mapping where it is
        self.pools: tuple[PoolLayout, ...] = (
            simulated_pool(model, num_blocks, block_size, ctypes.addressof(self._pool)),
        )
        self._debt_s = 0.0
        self._has_first_tokens = False

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        """See `Runner`. Time passes layer by layer when somebody waits for layers, or when it is much."""
        step_s = self.time.step_s(batch.rows)
        if self._has_first_tokens and not step_s:
            time.sleep(LEAVE_S)
        self._has_first_tokens = bool(batch.rows) and all(map(_is_end_of_prompt, batch.rows))
        if on_layers is None and step_s < LONG_STEP_S:
            self._wait(step_s)
            return answer(self.model, batch.rows)
        for layer in range(self.num_layers):
            self._wait(step_s / self.num_layers)
            if not is_wanted():
                raise StepAbandoned
            if on_layers is not None:
                on_layers(0, layer, 1)
        return answer(self.model, batch.rows)

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


def _is_end_of_prompt(row: ScheduledSequence) -> bool:
    return row.sample is not None and len(row.tokens) > 1
