"""Sizes are checked before sending."""

import pytest

from proto.codec import decode, encode
from proto.errors import PayloadTooLarge
from proto.requests import Accepted


def test_a_message_at_the_limit_is_sent_and_one_over_it_is_refused_with_both_numbers() -> None:
    message = Accepted("worker-1")
    size = len(encode(message))
    assert encode(message, size) == encode(message)
    with pytest.raises(PayloadTooLarge) as refused:
        encode(message, size - 1)
    assert refused.value.values == {"num_bytes": size, "limit_bytes": size - 1}


def test_one_struct_can_be_read_as_often_as_one_likes() -> None:
    payload = encode(Accepted("worker-1"))
    assert [decode(payload, Accepted) for _ in range(3)] == [Accepted("worker-1")] * 3
