"""What a Hugging Face folder says of its model, as one frozen struct; what is not supported is refused."""

from pathlib import Path

import msgspec

from services.models.rope_fields import count_context_tokens
from workers.model.config_file import ConfigFile, read_files, refusal
from workers.model.rope_config import Rope, read_rope
from workers.model.windows import read_windows

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_QWEN3_HEAD_DIM = 128  # what a Qwen3 config that names no head size means


class ModelConfig(msgspec.Struct, frozen=True):
    """One decoder: sizes, which of the families' differences it has, and where its texts end.

    `windows` says for each layer how many tokens a token sees, itself among them; None: all before it.
    `dtype` is the one in which the weights are stored.
    """

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
    windows: tuple[int | None, ...]
    has_qkv_bias: bool
    has_output_bias: bool
    has_feed_forward_bias: bool
    has_qk_norm: bool
    has_tied_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str


def read_config(folder: Path) -> ModelConfig:
    """The model in `folder`, from its config.json and, if there, its generation_config.json.

    Raises: InvalidSetting naming what is missing, malformed or not supported.
    """
    file, generation = read_files(folder)
    architecture = _architecture(folder, file)
    context_tokens = count_context_tokens(
        file.max_position_embeddings, file.original_max_position_embeddings, file.rope
    )
    config = ModelConfig(
        architecture=architecture,
        num_layers=file.num_hidden_layers,
        num_heads=file.num_attention_heads,
        num_kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=_head_dim(file, architecture),
        hidden_size=file.hidden_size,
        feed_forward_size=file.intermediate_size,
        vocab_size=file.vocab_size,
        max_context=context_tokens,
        rms_eps=file.rms_norm_eps,
        rope=read_rope(folder, file),
        windows=read_windows(folder, file, architecture, context_tokens),
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


def _architecture(folder: Path, file: ConfigFile) -> str:
    for name in file.architectures:
        if name in FAMILIES:
            return name
    found = ", ".join(file.architectures) or "none"
    known = ", ".join(FAMILIES)
    raise refusal(folder, f"the architecture is {found}; supported are {known}")


def _has_attention_bias(file: ConfigFile, architecture: str) -> bool:
    """Llama and Qwen3 take biases on all four projections by this field; Mistral and Qwen2 ignore it."""
    return file.attention_bias and architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")


def _head_dim(file: ConfigFile, architecture: str) -> int:
    if file.head_dim is not None:
        return file.head_dim
    if architecture == "Qwen3ForCausalLM":
        return _QWEN3_HEAD_DIM
    return file.hidden_size // file.num_attention_heads


def _ids(eos: int | list[int] | None) -> list[int]:
    if eos is None:
        return []
    return eos if isinstance(eos, list) else [eos]


def _refuse_unsupported(folder: Path, file: ConfigFile, config: ModelConfig) -> None:
    if file.hidden_act != "silu":
        raise refusal(folder, f"the activation {file.hidden_act!r} is not supported, only silu")
    if file.quantization_config is not None:
        raise refusal(folder, "weights that are stored quantized are not supported")
    if config.num_heads % config.num_kv_heads:
        reason = f"{config.num_heads} query heads cannot share {config.num_kv_heads} KV heads"
        raise refusal(folder, reason)
    if config.head_dim % 2 or not config.head_dim:
        raise refusal(folder, f"rotary positions need an even head size, not {config.head_dim}")
