"""The decoder: one definition for every family, told by its config, over a paged KV pool."""

from collections.abc import Callable

import torch
from torch.nn.functional import embedding, rms_norm, silu

from workers.model.attention import PagedAttention
from workers.model.batch import ForwardBatch
from workers.model.config import ModelConfig
from workers.model.rope import RopeTurns, rope_frequencies
from workers.model.weights import LayerWeights, Weights


class Decoder:
    """A transformer of the Llama kind on one device. Holds weights, no state of any sequence."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self._weights = weights
        self.dtype = weights.embedding_VM.dtype
        self._frequencies = rope_frequencies(config.rope, config.head_dim, weights.embedding_VM.device)

    @torch.inference_mode()
    def forward(
        self,
        batch: ForwardBatch,
        pool_NLKGPD: torch.Tensor,
        on_layer: Callable[[int], None] | None,
    ) -> torch.Tensor:
        """The logits of the wanted tokens, `logits_BV`, in float32; B may be 0.

        Shapes: the pool is `[block, layer, key or value, KV head, place, head dim]`, contiguous.
        Mutates: the pool, at the places of the batch's tokens. `on_layer(layer)` is called as soon as the
        KV of that layer is on its way there: on a device with a queue of its own, whoever reads the pool
        from elsewhere has to wait for that queue first.
        """
        attention = PagedAttention(batch, pool_NLKGPD, self.config.windows)
        scale = self.config.rope.attention_factor
        turns = RopeTurns(batch.positions_T, self._frequencies, scale, self.dtype)
        x_TM = embedding(batch.tokens_T, self._weights.embedding_VM)
        for index, layer in enumerate(self._weights.layers):
            qkv_TXD = self._project(layer, x_TM, turns)
            attention.write(index, qkv_TXD[:, self.config.num_heads :])
            if on_layer is not None:
                on_layer(index)
            answer_THD = attention.attend(index, qkv_TXD[:, : self.config.num_heads])
            x_TM = x_TM + layer.output(answer_THD.flatten(1))
            x_TM = x_TM + self._feed_forward(layer, x_TM)
        return self._logits(x_TM.index_select(0, batch.logit_rows_B))

    def _project(self, layer: LayerWeights, x_TM: torch.Tensor, turns: RopeTurns) -> torch.Tensor:
        """All heads of each token, queries then keys then values; queries and keys turned by position."""
        config = self.config
        normed_TM = self._norm(x_TM, layer.input_norm_M)
        qkv_TX = layer.qkv(normed_TM)
        qkv_TXD = qkv_TX.view(x_TM.shape[0], -1, config.head_dim)
        turned_TXD = qkv_TXD[:, : config.num_heads + config.num_kv_heads]
        if layer.qk_norm_XD is not None:
            normed_TXD = rms_norm(turned_TXD, (config.head_dim,), None, config.rms_eps)
            turned_TXD.copy_(normed_TXD * layer.qk_norm_XD)
        turns.apply(turned_TXD)
        return qkv_TXD

    def _feed_forward(self, layer: LayerWeights, x_TM: torch.Tensor) -> torch.Tensor:
        normed_TM = self._norm(x_TM, layer.feed_forward_norm_M)
        gate_TF, up_TF = layer.gate_up(normed_TM).chunk(2, dim=-1)
        return layer.down(silu(gate_TF).mul_(up_TF))

    def _logits(self, x_BM: torch.Tensor) -> torch.Tensor:
        return self._weights.head(self._norm(x_BM, self._weights.norm_M)).float()

    def _norm(self, x_TM: torch.Tensor, weight_M: torch.Tensor) -> torch.Tensor:
        return rms_norm(x_TM, (x_TM.shape[-1],), weight_M, self.config.rms_eps)
