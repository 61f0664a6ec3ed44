"""A runner without memory that takes no time: for who lets the time of a step pass before it is computed."""

from workers.engine.runner import IsWanted, OnLayers, RowResult, StepBatch, always_wanted
from workers.engine.simulated_model import SimulatedModel, answer


class InstantRunner:
    """Keeps the contract of `Runner` except for its pool: nothing lies at `pool_address`."""

    itemsize = 4
    dtype = "float32"
    pool_device = "cpu"
    pool_address = 0

    def __init__(self, model: SimulatedModel, num_blocks: int, block_size: int) -> None:
        self._model = model
        self.num_layers = model.num_layers
        self.num_kv_heads = model.num_kv_heads
        self.head_dim = model.head_dim
        self.block_size = block_size
        self.num_blocks = num_blocks
        block_bytes = model.num_layers * 2 * model.num_kv_heads * block_size * model.head_dim * self.itemsize
        self.pool_bytes = num_blocks * block_bytes

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        """See `Runner`. All layers are there at once."""
        if on_layers is not None:
            on_layers(0, self.num_layers)
        return answer(self._model, batch.rows)
