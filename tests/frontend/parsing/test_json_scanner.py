"""The JSON scanner against the standard library's parser."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.parsing.json_scanner import MAX_DEPTH, JsonScanner, Step

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
NOISE = st.text('{}[]",:\\ \n0123456789.-+eEtrufalsn\x01é', max_size=24)


def scan(text: str) -> tuple[int, Step, str]:
    """How many characters belong to the value, how it ended, and what they are as JSON."""
    scanner, seen = JsonScanner(), ""
    for place, char in enumerate(text):
        as_json = scanner.as_json(char)
        step = scanner.advance(char)
        if step is Step.ENDS:
            return place + 1, step, seen + as_json
        if step is not Step.GOES_ON:
            return place, step, seen
        seen += as_json
    return len(text), Step.GOES_ON, seen


@settings(max_examples=60)
@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans(), st.sampled_from([" after", "]", ",", "}x"]))
def test_a_value_ends_where_it_ends(value: object, indent: int | None, is_ascii: bool, after: str) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)

    num_chars, step, seen = scan(text + after)

    assert (num_chars, seen) == (len(text), text)
    assert step in (Step.ENDS, Step.ENDED_BEFORE)


@settings(max_examples=60)
@given(NOISE | VALUES.map(json.dumps))
def test_it_takes_what_the_standard_library_takes_and_nothing_else(text: str) -> None:
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text.lstrip(" \t\r\n"))
        end += len(text) - len(text.lstrip(" \t\r\n"))
    except (json.JSONDecodeError, ValueError):
        end = None

    num_chars, step, seen = scan(text + " ")

    is_value = step in (Step.ENDS, Step.ENDED_BEFORE)
    if is_value:
        assert end is not None
        assert json.loads(seen) == json.loads(text[:num_chars], strict=False)
    elif end is not None:  # a number that breaks off: the library takes its beginning, the scanner none of it
        assert text[num_chars - 1] in "-+.eE"


@pytest.mark.parametrize(("opener", "closer"), [("[", "]"), ('{"a":', "}")])
def test_levels_are_counted_and_bounded(opener: str, closer: str) -> None:
    core = "0" if opener == '{"a":' else ""

    deepest = opener * MAX_DEPTH + core + closer * MAX_DEPTH
    assert scan(deepest) == (len(deepest), Step.ENDS, deepest)
    assert scan(opener + deepest + closer)[1] is Step.IS_WRONG


def test_control_characters_in_strings_become_escapes() -> None:
    _, step, seen = scan('{"a\tb": "one\ntwo"}')

    assert step is Step.ENDS
    assert json.loads(seen) == {"a\tb": "one\ntwo"}
