"""Where the layers of one step put their products, each over those of the one before."""

import torch

from workers.model.config import ModelConfig


class Workspace:
    """Made for a step, with each view of it that a layer needs: the weights sweep a core's caches, and then a
    view costs half of what a small operator does.

    Shapes: of `qkv_TX`, all query heads, then all key heads, then all value heads: `q_THD`, and `kv_TXD` of
    both others; `turned_TXD` are queries and keys. Of `gate_up_TF`, the gate, then what it is to multiply.
    """

    def __init__(
        self, config: ModelConfig, num_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        num_turned = config.num_heads + config.num_kv_heads
        num_heads = num_turned + config.num_kv_heads
        self.qkv_TX = torch.empty(num_tokens, num_heads * config.head_dim, dtype=dtype, device=device)
        heads_TXD = self.qkv_TX.view(num_tokens, num_heads, config.head_dim)
        self.q_THD, self.kv_TXD = heads_TXD[:, : config.num_heads], heads_TXD[:, config.num_heads :]
        self.turned_TXD = heads_TXD[:, :num_turned]
        self.gate_up_TF = torch.empty(num_tokens, 2 * config.feed_forward_size, dtype=dtype, device=device)
        self.gate_TF, self.up_TF = self.gate_up_TF.chunk(2, dim=-1)
