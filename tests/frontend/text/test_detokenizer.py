from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from frontend.text.detokenizer import Detokenizer
from frontend.text.tokenizer import load_tokenizer
from tests.frontend.text.tokenizers import byte_level, saved, sentence_piece, token_id

_BYTE_LEVEL = load_tokenizer(saved(byte_level()))
_SENTENCE_PIECE = load_tokenizer(saved(sentence_piece()))

_SAMPLES = [
    "대한민국의 수도는 서울입니다.",
    "👩‍👩‍👧‍👦🏳️‍🌈👍🏽",
    "שלום עולם مرحبا",
    "def f(x):\n\treturn x ** 2  # ok\n",
    "e\u0301\ufffd\ufffd𝔘𝔫𝔦",
    "<think>plain<|end|>words",
]
_TEXTS = st.lists(st.sampled_from(_SAMPLES) | st.text(), max_size=4).map("".join)
_CUTS = st.lists(st.integers(0, 60), max_size=12)


def _pieces(tokens: list[int], cuts: list[int]) -> list[list[int]]:
    places = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    return [tokens[start:end] for start, end in pairwise(places)]


def _stream(detokenizer: Detokenizer, pieces: list[list[int]]) -> list[str]:
    return [*map(detokenizer.push, pieces), detokenizer.flush()]


@given(_TEXTS, _CUTS)
def test_text_streams_as_it_decodes_at_once_however_it_is_cut(text: str, cuts: list[int]) -> None:
    tokens = byte_level().encode(text).ids
    streamed = _stream(Detokenizer(_BYTE_LEVEL), _pieces(tokens, cuts))
    assert "".join(streamed) == byte_level().decode(tokens)


@given(_TEXTS)
def test_one_token_at_a_time_never_breaks_a_character(text: str) -> None:
    tokens = byte_level().encode(text).ids
    detokenizer = Detokenizer(_BYTE_LEVEL)
    streamed = [*map(detokenizer.push_one, tokens), detokenizer.flush()]
    assert streamed == _stream(Detokenizer(_BYTE_LEVEL), [[token] for token in tokens])
    assert sum(piece.count("\ufffd") for piece in streamed) == text.count("\ufffd")
    assert streamed[-1] == ""


@given(st.lists(st.integers(0, byte_level().get_vocab_size() + 5), max_size=40), _CUTS)
def test_random_tokens_stream_as_they_decode_at_once(tokens: list[int], cuts: list[int]) -> None:
    streamed = _stream(Detokenizer(_BYTE_LEVEL), _pieces(tokens, cuts))
    assert "".join(streamed) == byte_level().decode(tokens)
    detokenizer = Detokenizer(_BYTE_LEVEL)
    one_by_one = [*map(detokenizer.push_one, tokens), detokenizer.flush()]
    assert "".join(one_by_one) == "".join(streamed)


def _decode_after_a_prompt(tokenizer: Tokenizer, tokens: list[int]) -> str:
    prompt = tokenizer.encode("b").ids
    return tokenizer.decode(prompt + tokens).removeprefix(tokenizer.decode(prompt))


@given(_TEXTS, _CUTS)
def test_sentence_piece_streams_as_it_decodes_after_a_prompt(text: str, cuts: list[int]) -> None:
    tokens = sentence_piece().encode(text).ids
    streamed = _stream(Detokenizer(_SENTENCE_PIECE), _pieces(tokens, cuts))
    assert "".join(streamed) == _decode_after_a_prompt(sentence_piece(), tokens)


def test_a_character_that_never_came_is_one_replacement_character_at_the_end() -> None:
    detokenizer = Detokenizer(_BYTE_LEVEL)
    first_two_bytes_of_an_emoji = [token_id(byte_level(), piece) for piece in ("ð", "Ł")]
    assert detokenizer.push(first_two_bytes_of_an_emoji) == ""
    assert detokenizer.flush() == "\ufffd"


def test_endless_broken_bytes_do_not_pile_up() -> None:
    detokenizer = Detokenizer(_BYTE_LEVEL)
    continuation = token_id(byte_level(), "Ģ")  # the byte 0x80
    pushed = [detokenizer.push([continuation]) for _ in range(5000)]
    assert set(pushed) == {"\ufffd"}
