"""One rank's part of a forward: its layers, as one slice of a stage among others."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from workers.model.batch import ForwardBatch
from workers.model.decoder import Decoder
from workers.model.projection import Projection
from workers.model.share import Run, Share
from workers.model.weights import LayerWeights, Weights
from workers.ranks.exchange import Exchange
from workers.ranks.grid import Grid, split_evenly


class Stage:
    """Computes as a decoder does; its answer means something in the first slice of the last stage."""

    def __init__(self, decoder: Decoder, share: Share, exchange: Exchange) -> None:
        self._decoder = decoder
        self._share = share
        self._exchange = exchange

    @torch.inference_mode()
    def forward(
        self, batch: ForwardBatch, pool_NIGLKPD: torch.Tensor, on_layer: Callable[[int], None] | None
    ) -> torch.Tensor:
        x_TM = self._enter(batch)
        self._decoder.transform(x_TM, batch, pool_NIGLKPD, on_layer)
        if self._share.has_head:
            return self._decoder.read_out(x_TM, batch)
        self._exchange.hand_on(x_TM)
        return x_TM

    def _enter(self, batch: ForwardBatch) -> torch.Tensor:
        if self._share.has_embedding:
            return self._decoder.embed(batch)
        size = (len(batch.tokens_T), self._decoder.config.hidden_size)
        x_TM = torch.empty(size, dtype=self._decoder.dtype, device=batch.device)
        self._exchange.receive(x_TM)
        return x_TM


class SummedProjection:
    """A matrix whose columns are divided among slices: the answer is the sum of theirs."""

    def __init__(self, own: Projection, exchange: Exchange) -> None:
        self._own = own
        self._exchange = exchange

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        y_TO = self._own(x_TI)
        self._exchange.add_up(y_TO)
        return y_TO

    def add_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        y_TO.add_(self(x_TI))


class GatheredProjection:
    """A matrix whose rows are divided among slices: the first of them has the whole answer."""

    def __init__(self, own: Projection, columns: Sequence[Run], exchange: Exchange) -> None:
        self._own = own
        self._columns = columns
        self._exchange = exchange

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        if not len(x_TI):
            return x_TI.new_empty(0, self._columns[-1].end)
        return self._exchange.gather(self._own(x_TI), self._columns)

    def add_to(self, y_TO: torch.Tensor, x_TI: torch.Tensor) -> None:
        y_TO.add_(self(x_TI))


def share_out(weights: Weights, vocab_size: int, grid: Grid, exchange: Exchange) -> Weights:
    """The weights of one slice, which computes with the others of its stage."""
    if grid.tp == 1:
        return weights
    head = weights.head
    if head is not None:
        columns = [split_evenly(vocab_size, grid.tp, place) for place in range(grid.tp)]
        head = replace(head, projection=GatheredProjection(head.projection, columns, exchange))
    return replace(weights, layers=[_sum(layer, exchange) for layer in weights.layers], head=head)


def _sum(layer: LayerWeights, exchange: Exchange) -> LayerWeights:
    return replace(
        layer,
        output=SummedProjection(layer.output, exchange),
        down=SummedProjection(layer.down, exchange),
    )
