"""The runner that computes: model, KV pool and sampler on one torch device."""

from collections.abc import Callable

import torch

from workers.engine.logit_reading import read_logits
from workers.engine.runner import (
    IsWanted,
    OnLayers,
    RowResult,
    SampleParams,
    ScheduledSequence,
    StepAbandoned,
    StepBatch,
    always_wanted,
)
from workers.model.batch import Chunk, build_batch
from workers.model.decoder import Decoder
from workers.model.dtypes import dtype_name


class TorchRunner:
    """A `Runner` over a decoder and the pool that holds its KV."""

    def __init__(self, decoder: Decoder, pool_NLKGPD: torch.Tensor, layers_per_push: int) -> None:
        self._decoder = decoder
        self._layers_per_push = layers_per_push
        self.config = decoder.config
        self.pool_NLKGPD = pool_NLKGPD
        self.num_blocks, self.num_layers, _, self.num_kv_heads, self.block_size, self.head_dim = (
            pool_NLKGPD.shape
        )
        self.itemsize = pool_NLKGPD.itemsize
        self.dtype = dtype_name(pool_NLKGPD.dtype)
        self.pool_address = pool_NLKGPD.data_ptr()
        self.pool_bytes = pool_NLKGPD.nbytes
        self.pool_device = str(pool_NLKGPD.device)

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        if not batch.rows:
            return []
        chunks = [Chunk(row.tokens, row.start, row.blocks, row.num_logits) for row in batch.rows]
        forward_batch = build_batch(chunks, self.block_size, self.pool_NLKGPD.device)
        on_layer = self._between_layers(on_layers, is_wanted)
        logits_BV = self._decoder.forward(forward_batch, self.pool_NLKGPD, on_layer)
        batch.wait_masks()
        results = read_logits(logits_BV, batch.rows)
        self._wait_for_device()  # whoever reads the pool next may do so from outside torch's queue
        return results

    def warm_up(self) -> None:
        """Runs one prompt and one step of two sequences, so that no request pays for first uses.

        Mutates: the pool, whose first and last block it leaves zeroed: call it before anything is in it.
        """
        greedy = SampleParams()
        prompt = ScheduledSequence(tokens=[0] * self.block_size, start=0, blocks=[0], sample=greedy, key=0)
        last = ScheduledSequence(tokens=[0], start=self.block_size - 1, blocks=[0], sample=greedy, key=0)
        end = self.num_blocks - 1
        drawn = ScheduledSequence(tokens=[0], start=0, blocks=[end], sample=SampleParams(1.0, 8, 0.9), key=1)
        self.run(StepBatch([prompt]), None)
        self.run(StepBatch([last]), None)
        self.run(StepBatch([last, drawn]), None)
        self.pool_NLKGPD[[0, end]] = 0.0

    def _between_layers(self, on_layers: OnLayers | None, is_wanted: IsWanted) -> Callable[[int], None]:
        def on_layer(layer: int) -> None:
            if not is_wanted():
                raise StepAbandoned
            num_done = layer + 1
            is_end_of_group = num_done % self._layers_per_push == 0 or num_done == self.num_layers
            if on_layers is not None and is_end_of_group:
                first = layer - layer % self._layers_per_push
                self._wait_for_device()
                on_layers(first, num_done - first)

        return on_layer

    def _wait_for_device(self) -> None:
        device = self.pool_NLKGPD.device
        if device.type != "cpu":
            torch.accelerator.current_stream(device).synchronize()
