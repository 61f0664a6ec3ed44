"""Two small tokenizers, one of each kind that models carry."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

_CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then the dog sleeps in the sun.",
    "def main() -> None:\n    print('안녕하세요, 세계!')\n",
    "안녕하세요 한국어 문장입니다. 대한민국의 수도는 서울입니다.",
    "שלום עולם, مرحبا بالعالم",
    "👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ é e\u0301 \ufffd",
]


@cache
def byte_level() -> Tokenizer:
    """As of Llama 3, Qwen and SmolLM: bytes as printable characters, special and other added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens(["<|end|>", "<|start|>"])
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("é und ü")])
    return tokenizer


@cache
def sentence_piece() -> Tokenizer:
    """As of Llama 2 and Mistral: a mark for the space, single bytes for what has no token."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "é", "▁a", "ab", "▁ab", "\n"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[("▁", "a"), ("a", "b"), ("▁a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def saved(tokenizer: Tokenizer) -> bytes:
    """The bytes of its `tokenizer.json`."""
    return tokenizer.to_str().encode()


def token_id(tokenizer: Tokenizer, piece: str) -> int:
    found = tokenizer.token_to_id(piece)
    assert found is not None
    return found
