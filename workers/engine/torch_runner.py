"""The runner that computes: model, KV pool and sampler on one torch device."""

import torch

from proto.layout import PoolLayout
from workers.engine.logit_reading import read_logits
from workers.engine.paged_decoder import OnOwnLayers, PagedDecoder
from workers.engine.runner import (
    IsWanted,
    OnLayers,
    RowResult,
    Runner,
    SampleParams,
    ScheduledSequence,
    StepBatch,
    always_wanted,
)
from workers.model.chunk import Chunk


class TorchRunner:
    """A `Runner` of one rank."""

    def __init__(self, decoder: PagedDecoder) -> None:
        self._decoder = decoder
        self.pool_NIGLKPD: torch.Tensor = decoder.pool_NIGLKPD
        self.num_blocks = decoder.layout.num_blocks
        self.block_size = decoder.layout.block_size
        self.dtype = decoder.layout.dtype
        self.pools: tuple[PoolLayout, ...] = (decoder.layout,)

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        if not batch.rows:
            return []
        logits_BV = self._decoder.compute(chunks_of(batch), _of_rank_0(on_layers), is_wanted)
        batch.wait_masks()
        results = read_logits(logits_BV, batch.rows)
        self._decoder.wait_for_device()  # whoever reads the pool next may do so from outside torch's queue
        return results

    def warm_up(self) -> None:
        """As `warm_up`, and leaves the pool zeroed."""
        warm_up(self)
        self.pool_NIGLKPD[[0, self.num_blocks - 1]] = 0.0


def chunks_of(batch: StepBatch) -> list[Chunk]:
    return [Chunk(row.tokens, row.start, row.blocks, row.num_logits) for row in batch.rows]


def warm_up(runner: Runner) -> None:
    """Runs one prompt and one step of two sequences, so that no request pays for first uses.

    Mutates: the pool, in its first and last block: call it before anything is in it.
    """
    greedy, size, end = SampleParams(), runner.block_size, runner.num_blocks - 1
    prompt = ScheduledSequence(tokens=[0] * size, start=0, blocks=[0], sample=greedy, key=0)
    last = ScheduledSequence(tokens=[0], start=size - 1, blocks=[0], sample=greedy, key=0)
    drawn = ScheduledSequence(tokens=[0], start=0, blocks=[end], sample=SampleParams(1.0, 8, 0.9), key=1)
    for rows in ([prompt], [last], [last, drawn]):
        runner.run(StepBatch(rows), None)


def _of_rank_0(on_layers: OnLayers | None) -> OnOwnLayers | None:
    if on_layers is None:
        return None
    return lambda first_layer, num_layers: on_layers(0, first_layer, num_layers)
