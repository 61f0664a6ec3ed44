"""Which rank of a worker holds what of its model: layers by stage, heads and columns by slice; torch-free.

```
            slice 0    slice 1
 stage 0  [ rank 2 ] [ rank 3 ]   layers 0-14    embedding
 stage 1  [ rank 0 ] [ rank 1 ]   layers 15-29   head           tp 2, pp 2, 30 layers
```
Rank 0 leads. It is of the last stage, so that logits never leave their stage: what a step begins with is
token ids, which every rank is sent.
"""

from typing import NamedTuple

import msgspec

from proto.errors import InvalidSetting
from proto.layout import LayerRange
from workers.model.config import ModelConfig
from workers.model.share import Run, Share


class Place(NamedTuple):
    """Where a rank stands in its grid."""

    stage: int
    slice: int


class Grid(msgspec.Struct, frozen=True):
    """`tp` slices of each of `pp` stages, a rank each."""

    tp: int = 1
    pp: int = 1

    @property
    def num_ranks(self) -> int:
        return self.tp * self.pp

    def place_of(self, rank: int) -> Place:
        return Place(self.pp - 1 - rank // self.tp, rank % self.tp)

    def rank_at(self, stage: int, slice_: int) -> int:
        return (self.pp - 1 - stage) * self.tp + slice_

    def share_of(self, rank: int, config: ModelConfig) -> Share:
        """The model must be one that `check` has let pass. Two slices may hold the same KV head."""
        stage, place = self.place_of(rank)
        layers = split_evenly(config.num_layers, self.pp, stage)
        return Share(
            layers=LayerRange(layers.first, layers.num),
            heads=split_evenly(config.num_heads, self.tp, place),
            kv_heads=_split_kv_heads(config.num_kv_heads, self.tp, place),
            feed_forward=split_evenly(config.feed_forward_size, self.tp, place),
            vocab=split_evenly(config.vocab_size, self.tp, place),
            has_embedding=stage == 0,
            has_head=stage == self.pp - 1,
            adds_biases=place == 0,
        )

    def check(self, config: ModelConfig) -> None:
        """
        Raises:
            InvalidSetting: a model of this shape cannot be divided so.
        """
        if self.pp > config.num_layers:
            reason = f"{config.num_layers} layers cannot be divided among {self.pp} stages"
            raise InvalidSetting(setting="worker.pp", reason=reason)
        able = _able_slices(config)
        if self.tp not in able:
            heads = f"{config.num_heads} query heads and {config.num_kv_heads} KV heads"
            reason = f"{heads} cannot be shared among {self.tp} ranks; {_in_words(able)} can"
            raise InvalidSetting(setting="worker.tp", reason=reason)


def split_evenly(num: int, num_parts: int, part: int) -> Run:
    """The first parts are longer by one where `num` cannot be divided."""
    least, num_longer = divmod(num, num_parts)
    first = part * least + min(part, num_longer)
    return Run(first, least + (part < num_longer))


def _split_kv_heads(num: int, tp: int, place: int) -> Run:
    """With more slices than heads, as many neighbours as it takes hold the same one."""
    return split_evenly(num, tp, place) if tp <= num else Run(place * num // tp, 1)


def _able_slices(config: ModelConfig) -> list[int]:
    """So many slices can the model have: with as many query heads each, which see no KV heads of others."""
    num_kv = config.num_kv_heads
    most = min(config.num_heads, config.feed_forward_size, config.vocab_size)
    return [
        tp
        for tp in range(1, most + 1)
        if config.num_heads % tp == 0 and (num_kv % tp == 0 or tp % num_kv == 0)
    ]


def _in_words(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last
