"""Token ids and their bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InvalidRequest
from proto.tokens import TOKEN_BYTES, count_tokens, pack_tokens, unpack_tokens


@given(st.lists(st.integers(0, (1 << 32) - 1)))
def test_tokens_come_back_from_their_bytes(tokens: list[int]) -> None:
    packed = pack_tokens(tokens)
    assert unpack_tokens(packed) == tokens
    assert count_tokens(packed) == len(tokens)
    assert packed == b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in tokens)


def test_the_bytes_stay_what_they_are() -> None:
    assert pack_tokens([1, 256, (1 << 32) - 1]).hex() == "0100000000010000ffffffff"


@pytest.mark.parametrize(
    "tokens", [[-1], [1 << 32], [1.5], ["1"], [None], "12", b"1234", bytearray(3), 7, None]
)
def test_what_is_no_list_of_token_ids_is_refused(tokens: Any) -> None:
    with pytest.raises(InvalidRequest):
        pack_tokens(tokens)


@given(st.binary().filter(lambda data: len(data) % TOKEN_BYTES))
def test_bytes_that_are_no_whole_number_of_tokens_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        unpack_tokens(data)
