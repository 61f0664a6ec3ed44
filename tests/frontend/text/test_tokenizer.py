import json

import pytest

from frontend.text.tokenizer import load_tokenizer
from proto.errors import InvalidRequest, InvalidSetting
from tests.frontend.text.tokenizers import byte_level, saved, sentence_piece, token_id


def test_text_becomes_the_tokens_that_the_file_gives() -> None:
    real = byte_level()
    tokenizer = load_tokenizer(saved(real))
    text = "안녕하세요 <think> the dog\n👩‍👩‍👧‍👦"
    assert tokenizer.encode(text, add_special_tokens=False) == real.encode(text).ids
    assert tokenizer.vocab_size == real.get_vocab_size()


def test_the_bytes_of_the_tokens_joined_are_the_text() -> None:
    tokenizer = load_tokenizer(saved(byte_level()))
    text = "é 한국어 \ufffd 🏳️‍🌈 def f(): pass <think>"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == text


def test_special_tokens_and_tokens_outside_the_vocabulary_have_no_text() -> None:
    real = byte_level()
    tokenizer = load_tokenizer(saved(real))
    special = token_id(real, "<|end|>")
    assert [tokenizer.token_bytes(token) for token in (special, 10**6)] == [b"", b""]
    assert tokenizer.token_bytes(token_id(real, "<think>")) == b"<think>"


def test_sentence_piece_tokens_become_spaces_and_bytes() -> None:
    real = sentence_piece()
    tokenizer = load_tokenizer(saved(real))
    assert tokenizer.token_bytes(token_id(real, "▁ab")) == b" ab"
    assert tokenizer.token_bytes(token_id(real, "<0xED>")) == b"\xed"


def test_truncation_and_padding_of_the_file_are_not_followed() -> None:
    description = json.loads(saved(byte_level()))
    description["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tokenizer = load_tokenizer(json.dumps(description).encode())
    assert len(tokenizer.encode("the quick brown fox jumps", add_special_tokens=False)) > 2


def test_half_a_surrogate_pair_is_the_callers_fault() -> None:
    tokenizer = load_tokenizer(saved(byte_level()))
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        tokenizer.encode("a\ud800b", add_special_tokens=False)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b"not json", b'{"model": 7}'])
def test_what_is_no_tokenizer_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidSetting, match=r"tokenizer\.json"):
        load_tokenizer(data)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}, {"type": "Fuse"}],
        },
    ],
)
def test_a_tokenizer_that_joins_its_tokens_in_an_unknown_way_is_refused(decoder: object) -> None:
    description = json.loads(saved(byte_level()))
    description["decoder"] = decoder
    with pytest.raises(InvalidSetting, match="cannot decode"):
        load_tokenizer(json.dumps(description).encode())
