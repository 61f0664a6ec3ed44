"""The decoder: one definition for every family, told by its config, over a paged KV pool."""

from collections.abc import Callable

import torch
from torch.nn.functional import embedding, silu

from workers.model.attention import PagedAttention
from workers.model.batch import ForwardBatch
from workers.model.config import ModelConfig
from workers.model.pool_rows import PoolRows
from workers.model.rope import RopeTurns, rope_frequencies
from workers.model.weights import LayerWeights, Weights
from workers.model.workspace import Workspace


class Decoder:
    """A transformer of the Llama kind on one device, or a share of one: then `config` is narrowed to it.

    Holds weights, no state of any sequence.
    """

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self._weights = weights
        norm = weights.layers[0].input_norm.weight
        self.dtype = norm.dtype
        self._frequencies = rope_frequencies(config.rope, config.head_dim, norm.device)

    @torch.inference_mode()
    def forward(
        self,
        batch: ForwardBatch,
        pool_NIGLKPD: torch.Tensor,
        on_layer: Callable[[int], None] | None,
    ) -> torch.Tensor:
        """The logits of the wanted tokens, `logits_BV`, in float32; B may be 0. Of a whole model.

        Mutates, and who has to wait before the pool is read: see `transform`.
        """
        x_TM = self.embed(batch)
        self.transform(x_TM, batch, pool_NIGLKPD, on_layer)
        return self.read_out(x_TM, batch)

    def embed(self, batch: ForwardBatch) -> torch.Tensor:
        """The stream as it begins: a row for each token."""
        assert self._weights.embedding_VM is not None
        return embedding(batch.tokens_T, self._weights.embedding_VM)

    def transform(
        self,
        x_TM: torch.Tensor,
        batch: ForwardBatch,
        pool_NIGLKPD: torch.Tensor,
        on_layer: Callable[[int], None] | None,
    ) -> None:
        """Takes the stream through the layers.

        Shapes: the pool is `[block, tile, KV head, layer, key or value, place, head dim]`, contiguous.
        Mutates: the stream, and the pool, at the places of the batch's tokens. `on_layer(layer)` is called as
        soon as the KV of that layer, by its number here, is on its way there: on a device with a queue of its
        own, whoever reads the pool from elsewhere has to wait for that queue first.
        """
        work = Workspace(self.config, len(x_TM), self.dtype, x_TM.device)
        attention = PagedAttention(batch, PoolRows(pool_NIGLKPD), work.q_THD, self.config.windows)
        scale = self.config.rope.attention_factor
        turns = RopeTurns(batch.positions_T, self._frequencies, scale, self.dtype)
        for index, layer in enumerate(self._weights.layers):
            _project(layer, x_TM, turns, work)
            attention.write(index, work.kv_TXD)
            if on_layer is not None:
                on_layer(index)
            layer.output.add_to(x_TM, attention.attend(index))
            _add_feed_forward(layer, x_TM, work)

    def read_out(self, x_TM: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The logits of the wanted tokens."""
        head = self._weights.head
        assert head is not None
        return head.projection(head.norm(x_TM.index_select(0, batch.logit_rows_B))).float()


def _project(layer: LayerWeights, x_TM: torch.Tensor, turns: RopeTurns, work: Workspace) -> None:
    """All heads of each token, queries and keys turned by position.

    Mutates: `work`.
    """
    layer.qkv.write_to(work.qkv_TX, layer.input_norm(x_TM))
    if layer.qk_norm is not None:
        work.turned_TXD.copy_(layer.qk_norm(work.turned_TXD))
    turns.apply(work.turned_TXD)


def _add_feed_forward(layer: LayerWeights, x_TM: torch.Tensor, work: Workspace) -> None:
    """
    Mutates: `x_TM`, `work`.
    """
    layer.gate_up.write_to(work.gate_up_TF, layer.feed_forward_norm(x_TM))
    layer.down.add_to(x_TM, silu(work.gate_TF, inplace=True).mul_(work.up_TF))
