"""The least that a step can cost on this machine: its matrix products and its attention products, alone.

Nothing is looked up, normed, turned, stored, gathered or drawn; inputs lie where a product wants them. The
matrices and the KV lie as the engine's do, in huge pages: from small ones, and in a checkpoint's order, the
same products take up to twice as long, and that would be no floor. Each layer has KV of its own, so that it
comes from as far as in a step.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from workers.model.config import read_config
from workers.model.huge_pages import map_pages
from workers.model.projection import FullProjection
from workers.model.weights import load_weights

CPU = torch.device("cpu")


class Floor:
    """The products of the model in `folder`, at float32."""

    def __init__(self, folder: Path) -> None:
        self._config = read_config(folder)
        weights = load_weights(folder, self._config, CPU, torch.float32)
        assert weights.head is not None
        self._layers = [
            [_matrix(each) for each in (layer.qkv, layer.output, layer.gate_up, layer.down)]
            for layer in weights.layers
        ]
        self._head = weights.head.projection

    def decode(self, batch: int, context: int) -> Callable[[], None]:
        """A step of one token for each of `batch` sequences that are `context` long with it."""
        config = self._config
        heads = config.num_heads // config.num_kv_heads
        q_BGRD = torch.randn(batch, config.num_kv_heads, heads, config.head_dim)
        kv_L2BGSD = _draw(config.num_layers, 2, batch, config.num_kv_heads, context, config.head_dim)

        def attend(layer: int) -> None:
            scaled_dot_product_attention(q_BGRD, kv_L2BGSD[layer, 0], kv_L2BGSD[layer, 1])

        return self._step(batch, batch, attend)

    def prefill(self, length: int) -> Callable[[], None]:
        """A step that computes a whole prompt, and the logits of its last token."""
        config = self._config
        q_1HSD = torch.randn(1, config.num_heads, length, config.head_dim)
        kv_L21GSD = _draw(config.num_layers, 2, 1, config.num_kv_heads, length, config.head_dim)

        def attend(layer: int) -> None:
            k_1GSD, v_1GSD = kv_L21GSD[layer]
            scaled_dot_product_attention(q_1HSD, k_1GSD, v_1GSD, is_causal=True, enable_gqa=True)

        return self._step(length, 1, attend)

    def _step(self, num_tokens: int, num_logits: int, attend: Callable[[int], None]) -> Callable[[], None]:
        """Every product of a layer has an input of its own: none is warm from the one before."""
        inputs = [torch.randn(num_tokens, weight_IO.shape[0]) for weight_IO in self._layers[0]]
        last_BM = torch.randn(num_logits, self._config.hidden_size)

        @torch.inference_mode()
        def run() -> None:
            for number, layer in enumerate(self._layers):
                for x_TI, weight_IO in zip(inputs, layer, strict=True):
                    torch.mm(x_TI, weight_IO)
                attend(number)
            self._head(last_BM)

        return run


def _matrix(projection: object) -> torch.Tensor:
    assert isinstance(projection, FullProjection)
    return projection.weight_IO


def _draw(*shape: int) -> torch.Tensor:
    memory = map_pages(torch.Size(shape).numel() * torch.float32.itemsize)
    return memory.view(torch.float32).view(shape).normal_()
