"""What config.json says of rotary positions, and how far they stretch the context."""

from typing import Annotated

import msgspec
from msgspec import Meta

Factor = Annotated[float, Meta(gt=0, le=1_000_000)]
Positions = Annotated[int, Meta(gt=0)]


class RopeFields(msgspec.Struct, frozen=True):
    """`rope_scaling` of older folders (which call the kind `type`), `rope_parameters` of newer ones.

    The last two are what some folders hold instead of all the others: a set of them for each kind of layer.
    """

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: Factor | None = None
    low_freq_factor: Factor = 1.0
    high_freq_factor: Factor = 4.0
    original_max_position_embeddings: Positions | None = None
    partial_rotary_factor: float | None = None
    attention_factor: Factor | None = None
    beta_fast: Factor | None = None
    beta_slow: Factor | None = None
    mscale: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    mscale_all_dim: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    truncate: bool = True
    full_attention: dict[str, msgspec.Raw] | None = None
    sliding_attention: dict[str, msgspec.Raw] | None = None

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"


def count_context_tokens(num_positions: int, original_positions: int | None, rope: RopeFields | None) -> int:
    """Tokens of the longest sequence, from `max_position_embeddings`, `original_max_position_embeddings` and
    the rope fields.

    YaRN stretches the context it began with by its factor, and its authors tell users to add it to a folder
    whose `max_position_embeddings` then stays as it was. All other kinds stretch up to that.
    """
    if rope is None or rope.kind != "yarn" or rope.factor is None:
        return num_positions
    original = original_positions or rope.original_max_position_embeddings or num_positions
    return int(original * rope.factor)
