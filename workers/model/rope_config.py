"""Which rotary positions a model was trained with, as its config tells them."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from services.models.rope_fields import RopeFields
from workers.model.config_file import ConfigFile, refusal


class Rope(msgspec.Struct, frozen=True):
    """Rotary positions: which frequencies, and by what queries and keys are scaled.

    `default` stretches nothing. `linear` divides every frequency by `factor`; `llama3` only those of
    wavelengths beyond `original_context / low_freq_factor`, none below `original_context / high_freq_factor`,
    and blends between. `yarn` likewise, between the pairs that turn `beta_slow` and `beta_fast` times within
    the original context, to whole pairs if `is_truncated`; it scales queries and keys by `attention_factor`.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    attention_factor: float = 1.0


def read_rope(folder: Path, file: ConfigFile) -> Rope:
    """
    Raises:
        InvalidSetting: a kind that is not supported, or fields that make no sense.
    """
    found = file.rope
    read = _READERS.get(found.kind)
    if read is None:
        raise refusal(folder, f"rope scaling of kind {found.kind!r} is not supported")
    if (found.partial_rotary_factor or file.partial_rotary_factor or 1.0) != 1.0:
        raise refusal(folder, "a partial rotary factor is not supported")
    if found.full_attention or found.sliding_attention:
        raise refusal(folder, "rope parameters of their own for each kind of layer are not supported")
    rope = read(file, found)
    if rope is None or not _makes_sense(rope):
        raise refusal(folder, f"the factors of its {found.kind} rope are absent or make no sense")
    return rope


def _makes_sense(rope: Rope) -> bool:
    return rope.theta > 1 and rope.low_freq_factor < rope.high_freq_factor and rope.beta_slow < rope.beta_fast


def _theta(file: ConfigFile, found: RopeFields) -> float:
    return file.rope_theta if found.rope_theta is None else found.rope_theta


def _original_context(file: ConfigFile, found: RopeFields) -> int:
    own = file.original_max_position_embeddings or found.original_max_position_embeddings
    return own or file.max_position_embeddings


def _default(file: ConfigFile, found: RopeFields) -> Rope:
    """Also `dynamic`, which stretches only past `max_position_embeddings`: past the longest sequence here."""
    return Rope(_theta(file, found))


def _linear(file: ConfigFile, found: RopeFields) -> Rope | None:
    return None if found.factor is None else Rope(_theta(file, found), "linear", found.factor)


def _llama3(file: ConfigFile, found: RopeFields) -> Rope | None:
    if found.factor is None:
        return None
    return Rope(
        _theta(file, found),
        "llama3",
        found.factor,
        low_freq_factor=found.low_freq_factor,
        high_freq_factor=found.high_freq_factor,
        original_context=_original_context(file, found),
    )


def _yarn(file: ConfigFile, found: RopeFields) -> Rope:
    original = _original_context(file, found)
    factor = file.max_position_embeddings / original if found.factor is None else found.factor
    return Rope(
        _theta(file, found),
        "yarn",
        factor,
        original_context=original,
        beta_fast=found.beta_fast or 32.0,
        beta_slow=found.beta_slow or 1.0,
        is_truncated=found.truncate,
        attention_factor=_yarn_attention_factor(found, factor),
    )


def _yarn_attention_factor(found: RopeFields, factor: float) -> float:
    """As transformers has it. Source: YaRN (arXiv 2309.00071), section 3.4, and DeepSeek's two `mscale`."""

    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if found.attention_factor is not None:
        return found.attention_factor
    if found.mscale and found.mscale_all_dim:
        return grown(found.mscale) / grown(found.mscale_all_dim)
    return grown(1.0)


_READERS: Mapping[str, Callable[[ConfigFile, RopeFields], Rope | None]] = {
    "default": _default,
    "dynamic": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
