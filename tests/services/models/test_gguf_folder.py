import json
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from proto.errors import InvalidSetting
from services.models.folder import read_model_folder
from services.models.gguf_folder import write_folder
from services.models.progress import no_progress

_HIDDEN, _FEED, _HEADS, _KV_HEADS, _LAYERS = 64, 96, 4, 2, 2
_TOKENS = ["<|end|>", "<|start|>", "<think>", "Ġ", "a", "b", "1", "2", "ab", "Ġab"]
_TEMPLATE = "{{ messages[0].content }}"

Array = npt.NDArray[np.float32]


def _weights() -> dict[str, Array]:
    """Random weights under their Hugging Face names."""
    random = np.random.default_rng(0)
    kv_rows = _HIDDEN // _HEADS * _KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(_TOKENS), _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
        "lm_head.weight": (len(_TOKENS), _HIDDEN),
    }
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (_HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (kv_rows, _HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (kv_rows, _HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": (_HIDDEN,),
            f"{prefix}.mlp.gate_proj.weight": (_FEED, _HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (_FEED, _HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (_HIDDEN, _FEED),
        }
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def _as_gguf_orders(name: str, weights: Array) -> Array:
    """As llama.cpp's `convert_hf_to_gguf.py` permutes the rows of q and k."""
    heads = {"q_proj": _HEADS, "k_proj": _KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return weights
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def _write_gguf(
    path: Path,
    weights: dict[str, Array],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    pre: str = "smollm",
    architecture: str = "llama",
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_FEED)
    writer.add_block_count(_LAYERS)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_vocab_size(len(_TOKENS))
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(_TOKENS)
    writer.add_token_types([3, 3, 4, *[1] * (len(_TOKENS) - 3)])
    writer.add_token_merges(["a b", "Ġ ab"])
    writer.add_add_bos_token(False)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(_TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, _LAYERS)
    for name, array in weights.items():
        data = _as_gguf_orders(name, array)
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        assert gguf_name is not None
        raw = kind if data.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name, gguf.quants.quantize(data, raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_weights_come_back_in_the_order_and_under_the_names_of_hugging_face(tmp_path: Path) -> None:
    weights = _weights()
    folder = tmp_path / "folder"
    folder.mkdir()
    told: list[tuple[str, int, int]] = []
    write_folder(_write_gguf(tmp_path / "x.gguf", weights), folder, lambda *step: told.append(step))
    written = load_file(folder / "model.safetensors")
    assert written.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(written[name], array.astype(np.float16), err_msg=name)
    assert (told[0], told[-1]) == (("convert", 0, len(weights)), ("convert", len(weights), len(weights)))


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0])
def test_quantised_weights_come_back_within_a_step_of_the_quantisation(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    weights = _weights()
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(_write_gguf(tmp_path / "x.gguf", weights, kind), folder, no_progress)
    written = load_file(folder / "model.safetensors")
    for name, array in weights.items():
        spread = float(array.max() - array.min()) / 15
        np.testing.assert_allclose(written[name].astype(np.float32), array, atol=spread, err_msg=name)


def test_configuration_and_tokenizer_say_what_the_file_says(tmp_path: Path) -> None:
    weights = _weights()
    del weights["lm_head.weight"]
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(_write_gguf(tmp_path / "x.gguf", weights), folder, no_progress)
    config = json.loads((folder / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 100_000.0)
    assert (config["head_dim"], config["num_key_value_heads"]) == (16, _KV_HEADS)
    assert config["tie_word_embeddings"]
    model = read_model_folder(folder, "tiny")
    assert (model.eos_tokens, model.context_tokens, model.vocab_size) == ([0], 512, len(_TOKENS))
    assert (model.bos_token, model.eos_token, model.chat_template) == ("<|start|>", "<|end|>", _TEMPLATE)
    tokenizer = Tokenizer.from_file(str(model.tokenizer_path))
    tokens = tokenizer.encode("<|start|>ab<think> ab12<|end|>").ids
    assert [_TOKENS[token] for token in tokens] == [
        "<|start|>", "ab", "<think>", "Ġab", "1", "2", "<|end|>",
    ]  # fmt: skip
    assert tokenizer.decode(tokens) == "ab<think> ab12"


def test_what_cannot_be_converted_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF" + bytes(100))
    (tmp_path / "empty.gguf").write_bytes(b"")
    _write_gguf(tmp_path / "pre.gguf", _weights(), pre="llama-bpe")
    _write_gguf(tmp_path / "arch.gguf", _weights(), architecture="qwen2")
    reasons = {"no": "GGUF file", "empty": "GGUF file", "pre": "'llama-bpe', not 'smollm'", "arch": "'qwen2'"}
    for name, reason in reasons.items():
        with pytest.raises(InvalidSetting, match=reason):
            write_folder(tmp_path / f"{name}.gguf", tmp_path, no_progress)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    path = _write_gguf(tmp_path / "x.gguf", _weights())
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_down", b"blk.1.ffn_blow"))
    with pytest.raises(InvalidSetting, match="ffn_blow"):
        write_folder(path, tmp_path, no_progress)
