"""The weights of a decoder: which tensors a model folder must hold, how they are fused, and their digest."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from workers.model.config import ModelConfig
from workers.model.projection import FullProjection, Projection
from workers.model.shards import HEADER_LENGTH_BYTES, Shards, find_shards, read_header_bytes

_EDGE_BYTES = 65_536


Quantize = Callable[[torch.Tensor, torch.Tensor | None], Projection]
"""Makes the projection of a matrix and its bias, both in float32, in fewer bits."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Of `qkv` come all query heads, then all key heads, then all value heads; of `gate_up`, the
    gate, then the up projection. `qk_norm` holds one row for each query and key head."""

    input_norm_M: torch.Tensor
    qkv: Projection
    qk_norm_XD: torch.Tensor | None
    output: Projection
    feed_forward_norm_M: torch.Tensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class Weights:
    """All of them, on one device. With tied embeddings, `head` is the embedding, or made of it."""

    embedding_VM: torch.Tensor
    layers: list[LayerWeights]
    norm_M: torch.Tensor
    head: Projection


def load_weights(
    folder: Path,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    quantize: Quantize | None = None,
) -> Weights:
    """Reads every tensor once, straight into its place on the device; projections go through `quantize`.

    Raises: InvalidSetting when a tensor is missing, of another shape, or unknown.
    """
    shards = Shards(folder, device)
    shards.check(expected_shapes(config))
    return _Reader(shards, config, dtype, quantize).read()


class _Reader:
    def __init__(
        self, shards: Shards, config: ModelConfig, dtype: torch.dtype, quantize: Quantize | None
    ) -> None:
        self._shards = shards
        self._config = config
        self._dtype = dtype
        self._quantize = quantize

    def read(self) -> Weights:
        embedding_VM = self._tensor("model.embed_tokens.weight")
        layers = [self._layer(f"model.layers.{index}.") for index in range(self._config.num_layers)]
        norm_M = self._tensor("model.norm.weight")
        if self._config.has_tied_embeddings and self._quantize is None:
            head: Projection = FullProjection(embedding_VM, None)
        else:
            is_tied = self._config.has_tied_embeddings
            head = self._projection(["model.embed_tokens" if is_tied else "lm_head"], has_bias=False)
        return Weights(embedding_VM, layers, norm_M, head)

    def _layer(self, prefix: str) -> LayerWeights:
        config, attention, mlp = self._config, f"{prefix}self_attn.", f"{prefix}mlp."
        qk_norm = None
        if config.has_qk_norm:
            query, key = self._tensor(f"{attention}q_norm.weight"), self._tensor(f"{attention}k_norm.weight")
            qk_norm = torch.stack([query] * config.num_heads + [key] * config.num_kv_heads)
        gate_up, down = [f"{mlp}gate_proj", f"{mlp}up_proj"], [f"{mlp}down_proj"]
        return LayerWeights(
            input_norm_M=self._tensor(f"{prefix}input_layernorm.weight"),
            qkv=self._projection([f"{attention}{part}_proj" for part in "qkv"], has_bias=config.has_qkv_bias),
            qk_norm_XD=qk_norm,
            output=self._projection([f"{attention}o_proj"], has_bias=config.has_output_bias),
            feed_forward_norm_M=self._tensor(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._projection(gate_up, has_bias=config.has_feed_forward_bias),
            down=self._projection(down, has_bias=config.has_feed_forward_bias),
        )

    def _tensor(self, name: str) -> torch.Tensor:
        return self._shards.read_fused([name], self._dtype)

    def _projection(self, names: list[str], *, has_bias: bool) -> Projection:
        """The matrices one under another, as one."""
        dtype = self._dtype if self._quantize is None else torch.float32
        weight_OI = self._shards.read_fused([f"{name}.weight" for name in names], dtype)
        bias_O = self._shards.read_fused([f"{name}.bias" for name in names], dtype) if has_bias else None
        return (self._quantize or FullProjection)(weight_OI, bias_O)


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


def weights_digest(folder: Path, kind: str = "full") -> str:
    """32 hex digits that name a model's KV, and `-int8` if that is their kind: equal digests may share KV.

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
    return digest.hexdigest() if kind == "full" else f"{digest.hexdigest()}-{kind}"


def _absorb(digest: hashlib.blake2b, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # so that no two lists of parts read alike
        digest.update(part)
