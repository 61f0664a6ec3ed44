"""Which part of a model is held: all of it, or one rank's layers, heads and columns; torch-free."""

from typing import NamedTuple

import msgspec

from proto.layout import LayerRange
from workers.model.config import ModelConfig


class Run(NamedTuple):
    """Some of a model's heads, or columns: `num` of them from `first` on."""

    first: int
    num: int

    @property
    def end(self) -> int:
        return self.first + self.num


class Share(msgspec.Struct, frozen=True):
    """What one rank holds.

    Of several that hold the same layers each adds a part to what these add to the stream, and one of them
    `adds_biases` too. The embedding is where the layers begin, the head where they end.
    """

    layers: LayerRange
    heads: Run
    kv_heads: Run
    feed_forward: Run
    vocab: Run
    has_embedding: bool = True
    has_head: bool = True
    adds_biases: bool = True

    def narrow(self, config: ModelConfig) -> ModelConfig:
        """The model as this share of it looks: for who computes with what is there."""
        return msgspec.structs.replace(
            config,
            num_layers=self.layers.num_layers,
            num_heads=self.heads.num,
            num_kv_heads=self.kv_heads.num,
            feed_forward_size=self.feed_forward.num,
            windows=config.windows[self.layers.first : self.layers.end],
        )


def whole_of(config: ModelConfig) -> Share:
    """All of it."""
    return Share(
        layers=LayerRange(0, config.num_layers),
        heads=Run(0, config.num_heads),
        kv_heads=Run(0, config.num_kv_heads),
        feed_forward=Run(0, config.feed_forward_size),
        vocab=Run(0, config.vocab_size),
    )
