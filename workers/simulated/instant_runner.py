"""A runner without memory that takes no time: for who lets the time of a step pass before it is computed."""

from proto.layout import PoolLayout
from workers.engine.runner import IsWanted, OnLayers, RowResult, StepBatch, always_wanted
from workers.engine.simulated_model import DTYPE, SimulatedModel, answer, simulated_pool


class InstantRunner:
    """Keeps the contract of `Runner` except for its pool: nothing lies at its address."""

    dtype = DTYPE

    def __init__(self, model: SimulatedModel, num_blocks: int, block_size: int) -> None:
        self._model = model
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.pools: tuple[PoolLayout, ...] = (simulated_pool(model, num_blocks, block_size),)

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        """See `Runner`. All layers are there at once."""
        if on_layers is not None:
            on_layers(0, 0, self._model.num_layers)
        return answer(self._model, batch.rows)
