"""The weights of a decoder: which tensors a model folder must hold, how they are fused, and their digest."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from workers.model.config import ModelConfig
from workers.model.head_projection import project_head
from workers.model.norm import RmsNorm
from workers.model.projection import FullProjection, Projection, WritingProjection
from workers.model.shards import HEADER_LENGTH_BYTES, Piece, Shards, find_shards, read_header_bytes
from workers.model.share import Run, Share, whole_of
from workers.model.weight_memory import WeightMemory

_EDGE_BYTES = 65_536


Quantize = Callable[[torch.Tensor, torch.Tensor | None], WritingProjection]
"""Makes the projection of a matrix and its bias, both in float32, in fewer bits."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Of `qkv` come all query heads, then all key heads, then all value heads; of `gate_up`, the
    gate, then the up projection. `qk_norm` has weights for each query and key head."""

    input_norm: RmsNorm
    qkv: WritingProjection
    qk_norm: RmsNorm | None
    output: Projection
    feed_forward_norm: RmsNorm
    gate_up: WritingProjection
    down: Projection


@dataclass(frozen=True, slots=True)
class Head:
    """What makes logits of the stream's rows."""

    norm: RmsNorm
    projection: Projection


@dataclass(frozen=True, slots=True)
class Weights:
    """All of a share, on one device. With tied embeddings the head projects to rows of the embedding."""

    embedding_VM: torch.Tensor | None
    layers: list[LayerWeights]
    head: Head | None


def load_weights(
    folder: Path,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    quantize: Quantize | None = None,
    share: Share | None = None,
) -> Weights:
    """Reads every tensor once, straight into its place on the device; projections go through `quantize`.

    Args: `share` says how much of each; None: all.

    Raises: InvalidSetting when a tensor is missing, of another shape, or unknown.
    """
    shards = Shards(folder, device)
    shards.check(expected_shapes(config))
    return _Reader(shards, config, dtype, quantize, share or whole_of(config)).read()


class _Reader:
    def __init__(
        self,
        shards: Shards,
        config: ModelConfig,
        dtype: torch.dtype,
        quantize: Quantize | None,
        share: Share,
    ) -> None:
        self._shards = shards
        self._config = config
        self._dtype = dtype
        self._quantize = quantize
        self._share = share
        self._memory = WeightMemory()

    def read(self) -> Weights:
        layers = range(self._share.layers.first, self._share.layers.end)
        embedding_VM = self._tensor("model.embed_tokens.weight") if self._share.has_embedding else None
        return Weights(
            embedding_VM=embedding_VM,
            layers=[self._layer(f"model.layers.{index}.") for index in layers],
            head=self._head(embedding_VM) if self._share.has_head else None,
        )

    def _head(self, embedding_VM: torch.Tensor | None) -> Head:
        norm, vocab = self._norm("model.norm.weight"), self._share.vocab
        is_tied = self._config.has_tied_embeddings
        name = "model.embed_tokens" if is_tied else "lm_head"
        if self._quantize is not None:
            return Head(norm, self._outputs([(name, vocab)], has_bias=False))
        if is_tied and embedding_VM is not None:
            return Head(norm, project_head(embedding_VM[vocab.first : vocab.end]))
        weight_VM = self._shards.read_fused([Piece(f"{name}.weight", _cut(vocab))], self._dtype)
        return Head(norm, project_head(weight_VM))

    def _layer(self, prefix: str) -> LayerWeights:
        config, share, attention, mlp = self._config, self._share, f"{prefix}self_attn.", f"{prefix}mlp."
        heads, kv_heads = _rows_of(share.heads, config.head_dim), _rows_of(share.kv_heads, config.head_dim)
        queries_keys_values = zip("qkv", (heads, kv_heads, kv_heads), strict=True)
        qkv = [(f"{attention}{part}_proj", rows) for part, rows in queries_keys_values]
        gate_up = [(f"{mlp}{part}_proj", share.feed_forward) for part in ("gate", "up")]
        return LayerWeights(
            input_norm=self._norm(f"{prefix}input_layernorm.weight"),
            qkv=self._outputs(qkv, has_bias=config.has_qkv_bias),
            qk_norm=self._qk_norm(attention) if config.has_qk_norm else None,
            output=self._inputs(f"{attention}o_proj", heads, has_bias=config.has_output_bias),
            feed_forward_norm=self._norm(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self._outputs(gate_up, has_bias=config.has_feed_forward_bias),
            down=self._inputs(f"{mlp}down_proj", share.feed_forward, has_bias=config.has_feed_forward_bias),
        )

    def _qk_norm(self, attention: str) -> RmsNorm:
        query, key = self._tensor(f"{attention}q_norm.weight"), self._tensor(f"{attention}k_norm.weight")
        weight_XD = torch.stack([query] * self._share.heads.num + [key] * self._share.kv_heads.num)
        return RmsNorm(weight_XD, self._config.rms_eps)

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm(self._tensor(name), self._config.rms_eps)

    def _tensor(self, name: str) -> torch.Tensor:
        return self._shards.read_fused([Piece(name)], self._dtype)

    def _outputs(self, parts: Sequence[tuple[str, Run]], *, has_bias: bool) -> WritingProjection:
        """These rows of the matrices, one under another, as one."""
        weights = [Piece(f"{name}.weight", _cut(run)) for name, run in parts]
        biases = [Piece(f"{name}.bias", _cut(run)) for name, run in parts]
        return self._projection(weights, biases if has_bias else None)

    def _inputs(self, name: str, run: Run, *, has_bias: bool) -> Projection:
        """These columns of the matrix; the bias is one share's to add."""
        weights = [Piece(f"{name}.weight", columns=_cut(run))]
        return self._projection(
            weights, [Piece(f"{name}.bias")] if has_bias and self._share.adds_biases else None
        )

    def _projection(self, weights: list[Piece], biases: list[Piece] | None) -> WritingProjection:
        dtype = self._dtype if self._quantize is None else torch.float32
        weight_OI = self._shards.read_fused(weights, dtype)
        bias_O = self._shards.read_fused(biases, dtype) if biases is not None else None
        if self._quantize is not None:
            return self._quantize(weight_OI, bias_O)
        return FullProjection(self._memory.lay_out(weight_OI), bias_O)


def _rows_of(heads: Run, head_dim: int) -> Run:
    return Run(heads.first * head_dim, heads.num * head_dim)


def _cut(run: Run) -> slice:
    return slice(run.first, run.end)


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
