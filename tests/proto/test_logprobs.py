"""Records of log-probabilities come back from their bytes, cut by the number of their tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InvalidRequest
from proto.logprobs import (
    MAX_PROMPT_BYTES,
    TokenLogprobs,
    check_scores,
    pack_logprobs,
    record_bytes,
    split_records,
    unpack_logprobs,
)

LOGPROBS = st.floats(max_value=0, width=32)
TOKENS = st.integers(0, 2**32 - 1)


@given(num_best=st.integers(0, 20), data=st.data())
def test_records_come_back_one_by_one(num_best: int, data: st.DataObject) -> None:
    best = st.lists(st.tuples(TOKENS, LOGPROBS), min_size=num_best, max_size=num_best)
    entries = data.draw(st.lists(st.builds(TokenLogprobs, LOGPROBS, TOKENS, best), max_size=5))
    packed = pack_logprobs(entries)
    assert len(packed) == len(entries) * record_bytes(num_best)
    assert [unpack_logprobs(record) for record in split_records(packed, len(entries))] == entries


def test_tokens_without_records_have_empty_ones() -> None:
    assert split_records(b"", 3) == [b"", b"", b""]
    assert split_records(b"", 0) == []


@pytest.mark.parametrize(("records", "num_tokens"), [(b"12345678", 0), (b"123456789", 2)])
def test_records_that_cannot_be_cut_are_refused(records: bytes, num_tokens: int) -> None:
    with pytest.raises(InvalidRequest):
        split_records(records, num_tokens)


@given(record=st.binary(max_size=60))
def test_bytes_of_another_length_are_no_record(record: bytes) -> None:
    if len(record) >= 8 and len(record) % 8 == 0:
        assert len(unpack_logprobs(record).best) == len(record) // 8 - 1
    else:
        with pytest.raises(InvalidRequest):
            unpack_logprobs(record)


def test_a_prompt_whose_records_fill_a_message_is_the_longest_that_is_told() -> None:
    longest = MAX_PROMPT_BYTES // record_bytes(20)
    check_scores(20, longest)
    check_scores(None, longest + 1)
    with pytest.raises(InvalidRequest, match=f"{longest + 1} tokens.* {longest} "):
        check_scores(20, longest + 1)
