import re
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from frontend.text.segments import SegmentCache, TokenArray, find_cuts
from frontend.text.tokenizer import TextTokenizer, load_tokenizer
from tests.frontend.text.tokenizers import byte_level, saved, sentence_piece

_PIECES = [
    "<|start|>",
    "<|end|>",
    "<|sta",
    "rt|>",
    "<think>",
    "é und ü",
    " ",
    "\n",
    "the dog ",
    "안녕",
    "7",
    "<",
]
_TEXTS = st.lists(st.sampled_from(_PIECES) | st.text(max_size=8), max_size=12).map("".join)
_CHATS = st.lists(_TEXTS, min_size=1, max_size=4)


def _whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def loaded() -> TextTokenizer:
    return load_tokenizer(saved(byte_level()), kept_bytes=5000)


@given(_CHATS)
def test_text_in_parts_has_the_tokens_of_the_whole(loaded: TextTokenizer, texts: list[str]) -> None:
    for end in range(len(texts) + 1):  # a chat, longer by a message each time
        text = "<|start|>".join(texts[:end])
        assert loaded.encode(text, add_special_tokens=False) == _whole(byte_level(), text)


def test_what_came_before_is_not_tokenised_again() -> None:
    encoded: list[str] = []

    def encode(texts: list[str]) -> list[TokenArray]:
        encoded.extend(texts)
        return [array("I", map(ord, text)) for text in texts]

    cache = SegmentCache(re.compile(r"(\|)"), ord, max_bytes=10_000)
    first, second = "a" * 100, "b" * 100
    assert list(cache.encode(first, encode)) == [ord("a")] * 100
    text = f"{first}|{second}|{first}|c"
    assert list(cache.encode(text, encode)) == list(map(ord, text))
    assert encoded == [first, second, "c"]


def test_what_a_caller_does_to_its_tokens_changes_none_that_are_kept() -> None:
    cache = SegmentCache(re.compile(r"(\|)"), ord, max_bytes=10_000)
    text = "a" * 100
    for _ in range(3):
        tokens = cache.encode(text, lambda texts: [array("I", map(ord, text)) for text in texts])
        assert list(tokens) == list(map(ord, text))
        tokens.append(7)


def test_no_more_is_kept_than_allowed_and_the_oldest_goes_first() -> None:
    encoded: list[str] = []

    def encode(texts: list[str]) -> list[TokenArray]:
        encoded.extend(texts)
        return [array("I", bytes(4 * len(text))) for text in texts]

    cache = SegmentCache(re.compile(r"(\|)"), ord, max_bytes=2500)
    one, two, three = (letter * 100 for letter in "abc")
    for text in (one, two, one, three):
        cache.encode(text, encode)
        assert cache.num_bytes <= 2500
    encoded.clear()
    cache.encode(f"{one}|{three}|{two}", encode)
    assert encoded == [two]
    cache.encode("d" * 3000, encode)
    assert cache.num_bytes == 0


@pytest.mark.parametrize(
    "added",
    [
        AddedToken("|>x", special=True),
        AddedToken("x<|end|>", special=True),
        AddedToken("<|end|>y", special=False),
    ],
)
def test_no_cut_is_made_where_another_token_may_reach_across(added: AddedToken) -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_tokens([added])
    cuts = find_cuts(saved(tokenizer), tokenizer)
    assert cuts is None or not cuts.fullmatch("<|end|>")


def test_a_tokenizer_that_minds_where_a_text_begins_is_not_cut() -> None:
    described = sentence_piece().to_str().replace('"pre_tokenizer":null', f'"pre_tokenizer":{_METASPACE}')
    assert find_cuts(described.encode(), Tokenizer.from_str(described)) is None


_METASPACE = '{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}'
