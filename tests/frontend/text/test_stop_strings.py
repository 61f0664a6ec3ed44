import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.text.stop_strings import StopStrings
from proto.errors import InvalidRequest

_STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
_PIECES = st.lists(st.text("abc", max_size=6), max_size=12)


def _naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Look at every beginning of the text, the shortest first."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


def _stream(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    watch = StopStrings(stops)
    given_out: list[str] = []
    for piece in pieces:
        cut = watch.push(piece)
        given_out.append(cut.text)
        if cut.stop is not None:
            return given_out, cut.stop
    return [*given_out, watch.flush()], None


@given(_STOPS, _PIECES)
def test_any_cutting_gives_what_a_look_at_the_whole_text_gives(stops: list[str], pieces: list[str]) -> None:
    given_out, stop = _stream(stops, pieces)
    assert ("".join(given_out), stop) == _naive("".join(pieces), stops)


@given(_STOPS, _PIECES)
def test_only_what_may_begin_a_stop_string_is_held_back(stops: list[str], pieces: list[str]) -> None:
    watch = StopStrings(stops)
    pushed = given_out = ""
    for piece in pieces:
        cut = watch.push(piece)
        if cut.stop is not None:
            return
        pushed, given_out = pushed + piece, given_out + cut.text
        held = pushed.removeprefix(given_out)
        beginnings = [stop[:size] for stop in stops for size in range(len(stop))]
        assert held == max((start for start in beginnings if pushed.endswith(start)), key=len, default="")


def test_the_earliest_stop_wins_over_the_first_listed() -> None:
    assert _stream(["STOP", "END"], ["one END two STOP"]) == (["one "], "END")


def test_a_stop_split_over_pieces_leaks_nothing() -> None:
    assert _stream(["###"], ["answer#", "#", "# more"]) == (["answer", "", ""], "###")


def test_a_beginning_that_comes_to_nothing_is_given_out() -> None:
    assert _stream(["###"], ["a##", "b", "##"]) == (["a", "##b", "", "##"], None)


def test_without_stops_everything_passes_at_once() -> None:
    assert _stream([], ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="stop: a stop string is empty"):
        StopStrings(["a", ""])
