"""Events hold what was put into them, and can be taken apart again."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.events import to_event, to_lines

VALUES = st.lists(st.text(max_size=30), min_size=1, max_size=20)


@settings(max_examples=50)
@given(VALUES)
def test_events_and_lines_hold_the_same_json(values: list[str]) -> None:
    events = b"".join(to_event(json.dumps({"v": value}).encode()) for value in values)
    assert [json.loads(line)["v"] for line in to_lines(events).split(b"\n")] == values
