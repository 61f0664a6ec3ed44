"""A runner that computes nothing: time and tokens from a stated model, a pool in real memory."""

import ctypes
import mmap
import time

from workers.engine.runner import IsWanted, OnLayers, RowResult, StepAbandoned, StepBatch, always_wanted
from workers.engine.simulated_model import SimulatedModel, SimulatedTime, answer

LONG_STEP_S = 0.05
"""From here on a step is worth being abandoned in its midst."""
MAX_DEBT_S = 0.01
"""The most that waking late shortens later waits by: a pause of the whole process is not made good."""


class SimulatedRunner:
    """Keeps the contract of `Runner`, but leaves the pool as it is: what lies there comes from peers."""

    itemsize = 4
    dtype = "float32"
    pool_device = "cpu"

    def __init__(self, model: SimulatedModel, num_blocks: int, block_size: int = 16, seed: str = "") -> None:
        self.model = model
        self.time = SimulatedTime(model, seed)
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

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        """See `Runner`. Time passes layer by layer when somebody waits for layers, or when it is much."""
        step_s = self.time.step_s(batch.rows)
        if on_layers is None and step_s < LONG_STEP_S:
            self._wait(step_s)
            return answer(self.model, batch.rows)
        for layer in range(self.num_layers):
            self._wait(step_s / self.num_layers)
            if not is_wanted():
                raise StepAbandoned
            if on_layers is not None:
                on_layers(layer, 1)
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
