"""Lines in messages: nothing lost, no line cut, no message over its limit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.side_door.lines import cut_lines
from proto.errors import PayloadTooLarge


@settings(max_examples=50)
@given(st.lists(st.sampled_from([b"", b"a", b"b" * 11, b"c" * 24]), min_size=1), st.integers(24, 60))
def test_messages_hold_all_lines_within_their_limit(lines: list[bytes], limit_bytes: int) -> None:
    whole = b"\n".join(lines)
    messages = cut_lines(whole, limit_bytes)
    assert b"\n".join(messages) == whole
    assert all(len(message) <= limit_bytes for message in messages)


def test_a_line_over_the_limit_is_named_by_its_size() -> None:
    with pytest.raises(PayloadTooLarge, match="30 bytes are more"):
        cut_lines(b"a\n" + b"b" * 30 + b"\nc", 10)
