"""Tiny checkpoints with random weights, as complete Hugging Face folders, made without a network.

The weights are scaled so that greedy tokens vary, depend on the whole context, and are rarely near-ties.
The special tokens have faint output weights: a tiny model does not end by itself.
A test says how long it runs.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

Family = Literal["llama", "qwen2", "qwen3", "mistral"]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_IDS = (2, 0)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}
_CORPUS = """
A mesh of small services serves one large model. The frontend turns text into tokens and tokens into
text again; the router chooses which worker answers, by the prefix that each of them holds and by
the work it has promised already; the worker computes. When the answer is long the reader sees its
beginning while the end is unwritten. What is the capital of France? The capital of France is Paris.
What is the capital of Italy? It is Rome, a city of many hills, old stones and warm evenings. Once
upon a time a small fox lived beside a quiet river, and every morning it walked under the tall trees
to look for something new. You are a helpful assistant. Please answer in one short sentence, then
explain why, step by step, with numbers: 1, 2, 3, 10, 25, 100, 2024. Hello, world! How are you
today? I am well, thank you. Übermäßig viele schöne Wörter stehen zwischen den Zeilen. def main():
return
"""


def write_tiny(
    folder: Path,
    family: Family = "llama",
    *,
    heads: int = 8,
    kv_heads: int = 4,
    layers: int = 4,
    hidden: int = 64,
    vocab: int = 512,
    context: int = 2048,
    tied: bool = False,
    shards: int = 1,
    rope_scaling: dict[str, float | str] | None = None,
    fields: Mapping[str, object] | None = None,
    chat_template: str = CHAT_TEMPLATE,
    more_special_tokens: Sequence[str] = (),
    seed: int = 0,
) -> Path:
    """Writes a whole model folder and returns it. The same arguments give the same bytes.

    `fields` are more of config.json, or other values of those that it has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(
        family=family,
        heads=heads,
        kv_heads=kv_heads,
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        context=context,
        tied=tied,
        rope_scaling=rope_scaling,
    ) | dict(fields or {})
    _write_json(folder / "config.json", config)
    write_eos(folder, EOS_TOKEN_IDS)
    _write_tokenizer(folder, vocab, context, chat_template, (*SPECIAL_TOKENS, *more_special_tokens))
    _write_weights(folder, _random_weights(config, seed), shards)
    return folder


def write_tiny_llama(
    folder: Path,
    *,
    heads: int = 8,
    kv_heads: int = 4,
    layers: int = 4,
    hidden: int = 64,
    vocab: int = 512,
    seed: int = 0,
) -> Path:
    return write_tiny(
        folder, heads=heads, kv_heads=kv_heads, layers=layers, hidden=hidden, vocab=vocab, seed=seed
    )


def write_eos(folder: Path, tokens: Sequence[int]) -> None:
    """From now on any of `tokens` ends what the model in `folder` says."""
    _write_json(folder / "generation_config.json", {"eos_token_id": list(tokens), "do_sample": False})


def _config(
    *,
    family: Family,
    heads: int,
    kv_heads: int,
    layers: int,
    hidden: int,
    vocab: int,
    context: int,
    tied: bool,
    rope_scaling: dict[str, float | str] | None,
) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": rope_scaling,
        "tie_word_embeddings": tied,
        "eos_token_id": EOS_TOKEN_IDS[0],
        "bos_token_id": None,
        "torch_dtype": "float32",
    }
    if family == "qwen3":
        config["head_dim"] = 2 * hidden // heads  # wider than hidden / heads, as in the real ones
    if family == "mistral":
        config["sliding_window"] = None
    return config


def _shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    hidden, feed, vocab = (_int(config, key) for key in ("hidden_size", "intermediate_size", "vocab_size"))
    heads, kv_heads = _int(config, "num_attention_heads"), _int(config, "num_key_value_heads")
    head_dim = _int(config, "head_dim") if "head_dim" in config else hidden // heads
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (heads * head_dim, hidden),
        "self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
        "self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
        "self_attn.o_proj.weight": (hidden, heads * head_dim),
        "mlp.gate_proj.weight": (feed, hidden),
        "mlp.up_proj.weight": (feed, hidden),
        "mlp.down_proj.weight": (hidden, feed),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config["model_type"] == "qwen2":
        layer |= {f"self_attn.{x}_proj.bias": layer[f"self_attn.{x}_proj.weight"][:1] for x in "qkv"}
    if config["model_type"] == "qwen3":
        layer |= {f"self_attn.{x}_norm.weight": (head_dim,) for x in "qk"}
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for index in range(_int(config, "num_hidden_layers")):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _int(config: dict[str, object], key: str) -> int:
    value = config[key]
    assert isinstance(value, int)
    return value


def _random_weights(config: dict[str, object], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in _shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            weights[name] = 1.0 + 0.1 * noise
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            noise[: len(SPECIAL_TOKENS)] *= 0.05
            weights[name] = 0.5 * noise
        else:
            weights[name] = 1.6 / shape[-1] ** 0.5 * noise
    return weights


def _write_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file_name)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _write_tokenizer(
    folder: Path, vocab: int, context: int, chat_template: str, special_tokens: Sequence[str]
) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": chat_template,
        "model_max_length": context,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
