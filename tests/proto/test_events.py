"""Numbered events and their packed hashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.blockhash import HASH_BYTES
from proto.errors import InvalidRequest
from proto.events import BlocksRemoved, BlocksStored, KvEvents, pack_hashes, unpack_hashes


@given(st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)))
def test_hashes_come_back_in_their_order(hashes: list[bytes]) -> None:
    assert unpack_hashes(pack_hashes(hashes)) == hashes


@given(st.binary().filter(lambda data: len(data) % HASH_BYTES))
def test_bytes_that_are_no_whole_number_of_hashes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        unpack_hashes(data)


def test_events_are_counted_from_the_first() -> None:
    events = KvEvents("w1", "life", 5, [BlocksStored(b""), BlocksRemoved(b""), BlocksStored(b"")])
    assert events.last == 7


def test_the_event_after_an_empty_message_is_its_first() -> None:
    assert KvEvents("w1", "life", 5, []).last + 1 == 5
