"""Weights and shape of a Llama GGUF in Hugging Face's terms."""

import re
from collections.abc import Iterator
from typing import cast

import gguf
import numpy as np
import numpy.typing as npt

from proto.errors import InvalidSetting

Array = npt.NDArray[np.float16]

_OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def field(reader: gguf.GGUFReader, key: str) -> object:
    """The value under `key`.

    Raises:
        InvalidSetting: the file has no such key.
    """
    found = reader.get_field(key)
    if found is None:
        raise InvalidSetting(setting="model", reason=f"the GGUF file has no {key}")
    return found.contents()


def int_field(reader: gguf.GGUFReader, key: str) -> int:
    return int(cast(int, field(reader, key)))


def float_field(reader: gguf.GGUFReader, key: str) -> float:
    # stored as float32: the shortest decimal that gives the same float32 is what the model's authors wrote
    return float(str(np.float32(cast(float, field(reader, key)))))


def read_config(reader: gguf.GGUFReader) -> dict[str, object]:
    """What `config.json` says.

    Raises:
        InvalidSetting: not a Llama model, or a key is missing.
    """
    architecture = field(reader, "general.architecture")
    if architecture != "llama":
        raise InvalidSetting(setting="model", reason=f"GGUF of architecture {architecture!r}, not 'llama'")
    num_heads = int_field(reader, "llama.attention.head_count")
    hidden = int_field(reader, "llama.embedding_length")
    rope_theta = float_field(reader, "llama.rope.freq_base")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int_field(reader, "llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": int_field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": int_field(reader, "llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int_field(reader, "llama.attention.head_count_kv"),
        "head_dim": hidden // num_heads,
        "max_position_embeddings": int_field(reader, "llama.context_length"),
        "rms_norm_eps": float_field(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "torch_dtype": "float16",
    }


def iter_weights(reader: gguf.GGUFReader) -> Iterator[tuple[str, Array]]:
    """Each tensor under its Hugging Face name, dequantised, as float16.

    Raises:
        InvalidSetting: a tensor that a Llama model does not have.
    """
    heads = {
        "attn_q": int_field(reader, "llama.attention.head_count"),
        "attn_k": int_field(reader, "llama.attention.head_count_kv"),
    }
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        layer = _LAYER.fullmatch(tensor.name)
        if layer and layer[2] in heads:
            weights = split_rotary_pairs(weights, heads[layer[2]])
        yield _hugging_face_name(tensor.name), np.ascontiguousarray(weights, dtype=np.float16)


def _hugging_face_name(name: str) -> str:
    if name in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[name]
    layer = _LAYER.fullmatch(name)
    if layer is None or layer[2] not in _IN_LAYER:
        raise InvalidSetting(setting="model", reason=f"the GGUF file has an unknown tensor {name!r}")
    return f"model.layers.{layer[1]}.{_IN_LAYER[layer[2]]}.weight"


def split_rotary_pairs(weights_OI: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head from (0, half, 1, half + 1, ...) to (0, 1, ..., half, half + 1, ...).

    GGUF keeps the two rows that RoPE turns together side by side; Hugging Face keeps them half a head apart.

    Shapes: O output rows (heads times head size), I inputs.
    """
    num_rows, num_inputs = weights_OI.shape
    pairs = weights_OI.reshape(num_heads, num_rows // num_heads // 2, 2, num_inputs)
    return pairs.swapaxes(1, 2).reshape(num_rows, num_inputs)
