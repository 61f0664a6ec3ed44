"""The weights of a decoder: which tensors a model folder must hold, how they are fused, and their digest."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from workers.model.config import ModelConfig
from workers.model.shards import HEADER_LENGTH_BYTES, Shards, find_shards, read_header_bytes

_EDGE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Rows of `qkv` are all query heads, then all key heads, then all value heads; of `gate_up`,
    the gate, then the up projection. `qk_norm` holds one row for each query and key head."""

    input_norm_M: torch.Tensor
    qkv_XM: torch.Tensor
    qkv_bias_X: torch.Tensor | None
    qk_norm_XD: torch.Tensor | None
    output_MX: torch.Tensor
    output_bias_M: torch.Tensor | None
    feed_forward_norm_M: torch.Tensor
    gate_up_XM: torch.Tensor
    gate_up_bias_X: torch.Tensor | None
    down_MF: torch.Tensor
    down_bias_M: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """All of them, on one device and in one dtype. With tied embeddings, `head` and `embedding` are one."""

    embedding_VM: torch.Tensor
    layers: list[LayerWeights]
    norm_M: torch.Tensor
    head_VM: torch.Tensor


def load_weights(folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Weights:
    """Reads every tensor once, straight into its place on the device.

    Raises: InvalidSetting when a tensor is missing, of another shape, or unknown.
    """
    shards = Shards(folder, device, dtype)
    shards.check(expected_shapes(config))
    embedding_VM = shards.read("model.embed_tokens.weight")
    return Weights(
        embedding_VM=embedding_VM,
        layers=[_load_layer(shards, config, f"model.layers.{index}.") for index in range(config.num_layers)],
        norm_M=shards.read("model.norm.weight"),
        head_VM=embedding_VM if config.has_tied_embeddings else shards.read("lm_head.weight"),
    )


def _load_layer(shards: Shards, config: ModelConfig, prefix: str) -> LayerWeights:
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    qkv = [f"{attention}{part}_proj" for part in "qkv"]
    gate_up = [f"{mlp}{part}_proj" for part in ("gate", "up")]
    qk_norm = None
    if config.has_qk_norm:
        query, key = shards.read(f"{attention}q_norm.weight"), shards.read(f"{attention}k_norm.weight")
        qk_norm = torch.stack([query] * config.num_heads + [key] * config.num_kv_heads)
    return LayerWeights(
        input_norm_M=shards.read(f"{prefix}input_layernorm.weight"),
        qkv_XM=shards.read_fused([f"{name}.weight" for name in qkv]),
        qkv_bias_X=shards.read_fused([f"{name}.bias" for name in qkv]) if config.has_qkv_bias else None,
        qk_norm_XD=qk_norm,
        output_MX=shards.read(f"{attention}o_proj.weight"),
        output_bias_M=shards.read(f"{attention}o_proj.bias") if config.has_output_bias else None,
        feed_forward_norm_M=shards.read(f"{prefix}post_attention_layernorm.weight"),
        gate_up_XM=shards.read_fused([f"{name}.weight" for name in gate_up]),
        gate_up_bias_X=(
            shards.read_fused([f"{name}.bias" for name in gate_up]) if config.has_feed_forward_bias else None
        ),
        down_MF=shards.read(f"{mlp}down_proj.weight"),
        down_bias_M=shards.read(f"{mlp}down_proj.bias") if config.has_feed_forward_bias else None,
    )


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a folder with this config has to hold, by its name there."""
    embedding = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": (config.hidden_size,),
    }
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_shapes(config).items()}
    if not config.has_tied_embeddings:
        shapes["lm_head.weight"] = embedding
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, feed_forward = config.hidden_size, config.feed_forward_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    projections = {
        "self_attn.q_proj": (queries, hidden, config.has_qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.has_qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.has_qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.has_output_bias),
        "mlp.gate_proj": (feed_forward, hidden, config.has_feed_forward_bias),
        "mlp.up_proj": (feed_forward, hidden, config.has_feed_forward_bias),
        "mlp.down_proj": (hidden, feed_forward, config.has_feed_forward_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (rows, columns, has_bias) in projections.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.has_qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def weights_digest(folder: Path) -> str:
    """32 hex digits that name a model's KV: workers with equal digests may share KV.

    Covers config.json and, for each shard by name: its size, its safetensors header (names, dtypes, shapes,
    offsets) and the first and last 64 KiB of its tensor bytes. So it costs milliseconds for any size, tells
    models and fine-tunes apart (training moves every tensor), and is no proof against forgery.
    """
    digest = hashlib.blake2b(digest_size=16)
    _absorb(digest, (folder / "config.json").read_bytes())
    for shard in find_shards(folder):
        size_bytes = shard.stat().st_size
        header = read_header_bytes(shard)
        _absorb(digest, shard.name.encode(), size_bytes.to_bytes(8, "little"), header)
        data_start = HEADER_LENGTH_BYTES + len(header)
        with shard.open("rb") as file:
            file.seek(data_start)
            _absorb(digest, file.read(_EDGE_BYTES))
            file.seek(max(data_start, size_bytes - _EDGE_BYTES))
            _absorb(digest, file.read(_EDGE_BYTES))
    return digest.hexdigest()


def _absorb(digest: hashlib.blake2b, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # so that no two lists of parts read alike
        digest.update(part)
