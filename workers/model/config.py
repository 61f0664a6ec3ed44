"""What a Hugging Face folder says of its model, as one frozen struct; what is not supported is refused."""

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from proto.errors import InvalidSetting

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_MISTRAL_WINDOW = 4096  # what a Mistral config that names no window means
_QWEN3_HEAD_DIM = 128  # likewise for Qwen3's head size

Count = Annotated[int, msgspec.Meta(gt=0)]
_File = TypeVar("_File")


class Rope(msgspec.Struct, frozen=True):
    """Rotary positions.

    `factor` stretches positions. `linear` divides every frequency by it; `llama3` only those of wavelengths
    beyond `original_context / low_freq_factor`, none below `original_context / high_freq_factor`, and blends
    between. `default` stretches nothing.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


class ModelConfig(msgspec.Struct, frozen=True):
    """One decoder: sizes, which of the families' differences it has, and where its texts end."""

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    feed_forward_size: int
    vocab_size: int
    max_context: int
    rms_eps: float
    rope: Rope
    has_qkv_bias: bool
    has_output_bias: bool
    has_feed_forward_bias: bool
    has_qk_norm: bool
    has_tied_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str


class _RopeFile(msgspec.Struct):
    """`rope_parameters` of newer folders, `rope_scaling` of older ones (which call the kind `type`)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0


class _ConfigFile(msgspec.Struct):
    """The fields of config.json that matter here, with the defaults that transformers gives them."""

    architectures: list[str]
    num_hidden_layers: Count
    num_attention_heads: Count
    hidden_size: Count
    intermediate_size: Count
    vocab_size: Count
    max_position_embeddings: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: _RopeFile | None = None
    rope_parameters: _RopeFile | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    sliding_window: int | msgspec.UnsetType | None = msgspec.UNSET
    layer_types: list[str] | None = None
    quantization_config: dict[str, msgspec.Raw] | None = None
    eos_token_id: int | list[int] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None


class _GenerationFile(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def read_config(folder: Path) -> ModelConfig:
    """The model in `folder`, from its config.json and, if there, its generation_config.json.

    Raises: InvalidSetting naming what is missing, malformed or not supported.
    """
    file = _read_json(folder / "config.json", _ConfigFile)
    generation = _GenerationFile()
    if (folder / "generation_config.json").is_file():
        generation = _read_json(folder / "generation_config.json", _GenerationFile)
    architecture = _architecture(folder, file)
    kv_heads = file.num_key_value_heads or file.num_attention_heads
    config = ModelConfig(
        architecture=architecture,
        num_layers=file.num_hidden_layers,
        num_heads=file.num_attention_heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(file, architecture),
        hidden_size=file.hidden_size,
        feed_forward_size=file.intermediate_size,
        vocab_size=file.vocab_size,
        max_context=file.max_position_embeddings,
        rms_eps=file.rms_norm_eps,
        rope=_rope(folder, file),
        has_qkv_bias=architecture == "Qwen2ForCausalLM" or _has_attention_bias(file, architecture),
        has_output_bias=_has_attention_bias(file, architecture),
        has_feed_forward_bias=architecture == "LlamaForCausalLM" and file.mlp_bias,
        has_qk_norm=architecture == "Qwen3ForCausalLM",
        has_tied_embeddings=file.tie_word_embeddings,
        eos_token_ids=tuple(sorted({*_ids(file.eos_token_id), *_ids(generation.eos_token_id)})),
        dtype=file.dtype or file.torch_dtype or "float32",
    )
    _refuse_unsupported(folder, file, config)
    return config


def _read_json(path: Path, kind: type[_File]) -> _File:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InvalidSetting(setting="model", reason=f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSetting(setting="model", reason=f"{path}: {error}") from error


def _architecture(folder: Path, file: _ConfigFile) -> str:
    for name in file.architectures:
        if name in FAMILIES:
            return name
    found = ", ".join(file.architectures) or "none"
    known = ", ".join(FAMILIES)
    raise _refusal(folder, f"the architecture is {found}; supported are {known}")


def _has_attention_bias(file: _ConfigFile, architecture: str) -> bool:
    """Llama and Qwen3 take biases on all four projections by this field; Mistral and Qwen2 ignore it."""
    return file.attention_bias and architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")


def _head_dim(file: _ConfigFile, architecture: str) -> int:
    if file.head_dim is not None:
        return file.head_dim
    if architecture == "Qwen3ForCausalLM":
        return _QWEN3_HEAD_DIM
    return file.hidden_size // file.num_attention_heads


def _ids(eos: int | list[int] | None) -> list[int]:
    if eos is None:
        return []
    return eos if isinstance(eos, list) else [eos]


def _rope(folder: Path, file: _ConfigFile) -> Rope:
    found = file.rope_parameters or file.rope_scaling or _RopeFile()
    kind = found.rope_type or found.type or "default"
    if kind not in ("default", "linear", "llama3"):
        raise _refusal(folder, f"rope scaling of kind {kind!r} is not supported")
    if found.partial_rotary_factor != 1.0:
        raise _refusal(folder, "a partial rotary factor is not supported")
    if found.factor <= 0 or found.low_freq_factor >= found.high_freq_factor:
        raise _refusal(folder, "the rope scaling factors make no sense")
    return Rope(
        theta=file.rope_theta if found.rope_theta is None else found.rope_theta,
        kind=kind,
        factor=found.factor,
        low_freq_factor=found.low_freq_factor,
        high_freq_factor=found.high_freq_factor,
        original_context=found.original_max_position_embeddings or file.max_position_embeddings,
    )


def _refuse_unsupported(folder: Path, file: _ConfigFile, config: ModelConfig) -> None:
    if file.hidden_act != "silu":
        raise _refusal(folder, f"the activation {file.hidden_act!r} is not supported, only silu")
    if file.quantization_config is not None:
        raise _refusal(folder, "quantized weights are not supported")
    if _has_active_window(file, config.architecture):
        raise _refusal(folder, "attention with a sliding window is not supported")
    if config.num_heads % config.num_kv_heads:
        reason = f"{config.num_heads} query heads cannot share {config.num_kv_heads} KV heads"
        raise _refusal(folder, reason)
    if config.head_dim % 2:
        raise _refusal(folder, f"rotary positions need an even head size, not {config.head_dim}")


def _has_active_window(file: _ConfigFile, architecture: str) -> bool:
    """A window as wide as the context hides nothing."""
    if architecture == "MistralForCausalLM":
        window = _MISTRAL_WINDOW if file.sliding_window is msgspec.UNSET else file.sliding_window
        return window is not None and window < file.max_position_embeddings
    return file.use_sliding_window or "sliding_attention" in (file.layer_types or ())


def _refusal(folder: Path, reason: str) -> InvalidSetting:
    return InvalidSetting(setting="model", reason=f"{folder}: {reason}")
