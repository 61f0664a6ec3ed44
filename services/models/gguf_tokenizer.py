"""The tokenizer of a GGUF as `tokenizer.json` and `tokenizer_config.json`."""

from typing import cast

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from proto.errors import InvalidSetting
from services.models.gguf_weights import field, int_field

_KEY = "tokenizer.ggml"
_CONTROL = 3
_USER_DEFINED = 4


def read_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """Byte-level BPE with the vocabulary, merges and special tokens of the file.

    Raises:
        InvalidSetting: a kind of tokenizer, or of splitting before it, that is not known here.
    """
    _require(reader, "model", "gpt2")
    _require(reader, "pre", "smollm")
    _require(reader, "add_bos_token", False)
    tokens = _tokens(reader)
    merges = [_pair(line) for line in cast(list[str], field(reader, f"{_KEY}.merges"))]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(reader, tokenizer, tokens)
    return tokenizer


def read_tokenizer_config(reader: gguf.GGUFReader) -> dict[str, object]:
    """Names of the special tokens, and the chat template."""
    tokens = _tokens(reader)
    named = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int_field(reader, "llama.context_length"),
        "clean_up_tokenization_spaces": False,
        **{name: tokens[int_field(reader, f"{_KEY}.{key}")] for name, key in named.items()},
        "chat_template": field(reader, "tokenizer.chat_template"),
    }


def special_ids(reader: gguf.GGUFReader) -> dict[str, int]:
    """What `config.json` and `generation_config.json` name by id."""
    return {
        "bos_token_id": int_field(reader, f"{_KEY}.bos_token_id"),
        "eos_token_id": int_field(reader, f"{_KEY}.eos_token_id"),
        "pad_token_id": int_field(reader, f"{_KEY}.padding_token_id"),
    }


def _tokens(reader: gguf.GGUFReader) -> list[str]:
    return cast(list[str], field(reader, f"{_KEY}.tokens"))


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _require(reader: gguf.GGUFReader, key: str, wanted: object) -> None:
    found = field(reader, f"{_KEY}.{key}")
    if found != wanted:
        raise InvalidSetting(setting="model", reason=f"GGUF with {_KEY}.{key} = {found!r}, not {wanted!r}")


def _add_tokens(reader: gguf.GGUFReader, tokenizer: Tokenizer, tokens: list[str]) -> None:
    kinds = cast(list[int], field(reader, f"{_KEY}.token_type"))
    added = {_CONTROL: True, _USER_DEFINED: False}
    tokenizer.add_tokens(
        [
            AddedToken(token, special=added[kind], normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in added
        ]
    )
