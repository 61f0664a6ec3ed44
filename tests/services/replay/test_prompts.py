"""Tokens for the blocks of a trace."""

import json

from hypothesis import given
from hypothesis import strategies as st

from services.replay.prompts import PromptMaker
from services.replay.trace import TraceRequest, num_blocks


def request(length: int, *ids: int) -> TraceRequest:
    return TraceRequest(0, length, 1, ids)


def test_equal_ids_give_equal_tokens_and_others_give_others() -> None:
    prompts = PromptMaker(32000, seed=1)
    first, second = prompts.tokens(request(1024, 7, 8)), prompts.tokens(request(1024, 7, 9))
    assert first[:512] == second[:512]
    assert first[512:] != second[512:]
    assert prompts.tokens(request(1024, 8, 7)) == first[512:] + first[:512]


def test_the_last_block_is_cut_to_the_length() -> None:
    prompts = PromptMaker(32000, seed=1)
    assert prompts.tokens(request(600, 7, 8)) == prompts.tokens(request(1024, 7, 8))[:600]


def test_another_seed_gives_other_tokens() -> None:
    asked = request(512, 7)
    assert PromptMaker(32000, 1).tokens(asked) != PromptMaker(32000, 2).tokens(asked)
    assert PromptMaker(32000, 1).tokens(asked) == PromptMaker(32000, 1).tokens(asked)


@given(
    st.integers(1, 3000),
    st.lists(st.integers(-(2**63), 2**63), min_size=6, max_size=6),
    st.integers(1, 2**20),
)
def test_the_json_is_that_of_the_tokens_and_all_are_in_the_vocabulary(
    length: int, ids: list[int], vocab_size: int
) -> None:
    prompts = PromptMaker(vocab_size, seed=3)
    asked = request(length, *ids[: num_blocks(length)])
    tokens = prompts.tokens(asked)
    assert json.loads(prompts.as_json(asked)) == tokens
    assert prompts.as_json(asked) == prompts.as_json(asked)
    assert len(tokens) == length
    assert 0 <= min(tokens) <= max(tokens) < vocab_size
