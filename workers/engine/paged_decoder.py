"""A decoder, or a share of one, with the pool that its KV lies in."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from proto.layout import PoolLayout
from workers.engine.runner import IsWanted, StepAbandoned, always_wanted
from workers.model.batch import ForwardBatch, build_batch
from workers.model.chunk import Chunk

OnOwnLayers = Callable[[int, int], None]
"""Called as `on_layers(first_layer, num_layers)`, as the model numbers them: their KV is in the pool."""


class Forward(Protocol):
    """What computes a batch: a decoder, or a stage among others."""

    def forward(
        self, batch: ForwardBatch, pool_NIGLKPD: torch.Tensor, on_layer: Callable[[int], None] | None
    ) -> torch.Tensor:
        """See `Decoder.forward`. Who holds no head answers what it likes."""
        ...


class PagedDecoder:
    """Computes the chunks of a step. `layout` is that of the pool."""

    def __init__(
        self, decoder: Forward, pool_NIGLKPD: torch.Tensor, layout: PoolLayout, layers_per_push: int
    ) -> None:
        self.pool_NIGLKPD = pool_NIGLKPD
        self.layout = layout
        self._decoder = decoder
        self._layers_per_push = layers_per_push

    def compute(
        self, chunks: Sequence[Chunk], on_layers: OnOwnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> torch.Tensor:
        """The wanted logits, on the device. Others may read the pool once `wait_for_device` has returned.

        Mutates: the pool, at the places of the chunks' tokens.

        Raises:
            StepAbandoned: `is_wanted`, asked between two layers, said no.
        """
        batch = build_batch(chunks, self.layout.block_size, self.pool_NIGLKPD.device)
        return self._decoder.forward(batch, self.pool_NIGLKPD, self._between_layers(on_layers, is_wanted))

    def _between_layers(self, on_layers: OnOwnLayers | None, is_wanted: IsWanted) -> Callable[[int], None]:
        def on_layer(layer: int) -> None:
            if not is_wanted():
                raise StepAbandoned
            num_done = layer + 1
            is_end_of_group = num_done % self._layers_per_push == 0 or num_done == self.layout.num_layers
            if on_layers is not None and is_end_of_group:
                first = layer - layer % self._layers_per_push
                self.wait_for_device()
                on_layers(self.layout.first_layer + first, num_done - first)

        return on_layer

    def wait_for_device(self) -> None:
        device = self.pool_NIGLKPD.device
        if device.type != "cpu":
            torch.accelerator.current_stream(device).synchronize()
