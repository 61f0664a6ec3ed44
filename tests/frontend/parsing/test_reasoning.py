"""Thoughts before answers, however they begin and end."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.parsing.answer_parser import AnswerParser
from frontend.parsing.hermes import HermesParser
from frontend.parsing.mistral import MistralParser
from frontend.parsing.reasoning import MAX_BLANKS, ReasoningMarks, ReasoningParser
from tests.frontend.parsing.cutting import CUTS, FUNCTIONS, Said, parse

MARKS = ReasoningMarks("<think>", "</think>")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
FRAGMENTS = [
    " " * 150,
    "<think>",
    "</think>",
    "<",
    "</",
    "think>",
    " ",
    "\n\n",
    "Hm",
    "é",
    "<tool_call>",
    CALL,
]
OUTPUTS = st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join)

SAID = [
    # what comes out, whether the prompt had opened a thought, its reasoning, its content
    ("<think>\nHm.\n</think>\n\nHello", False, "Hm.\n", "Hello"),
    ("\n<think>Hm</think>Hello", False, "Hm", "Hello"),
    ("Hm</think>Hello", True, "Hm", "Hello"),
    ("<think>\nHm</think>Hello", True, "Hm", "Hello"),
    ("<think>\n\n</think>\n\nHello", False, "", "Hello"),
    ("\n</think>\n\nHello", True, "", "Hello"),
    ("Hello", False, "", "Hello"),
    (" Hello", False, "", " Hello"),
    (" " * 300 + "<think>Hm</think>", False, "", " " * 300 + "<think>Hm</think>"),
    ("It never ends", True, "It never ends", ""),
    ("<think>It never ends </thi", False, "It never ends </thi", ""),
    ("Hm</think>Hello", False, "", "Hm</think>Hello"),
    ("Hello <think>Hm</think>", False, "", "Hello <think>Hm</think>"),
    ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
    ("<thi", False, "", "<thi"),
    ("<thi", True, "<thi", ""),
    ("", True, "", ""),
    (" \n", False, "", " \n"),
]


def thinker(*, is_open: bool, calls: bool = False) -> AnswerParser:
    return AnswerParser(ReasoningParser(MARKS, is_open=is_open), HermesParser(FUNCTIONS) if calls else None)


@pytest.mark.parametrize(("text", "is_open", "reasoning", "content"), SAID)
def test_reasoning_and_content_are_told_apart(text: str, is_open: bool, reasoning: str, content: str) -> None:
    for cuts in [[], *([size] for size in range(1, 9))]:
        assert parse(lambda: thinker(is_open=is_open), text, cuts) == Said(reasoning, content)


@settings(max_examples=50)
@given(OUTPUTS, st.booleans(), st.booleans(), CUTS)
def test_any_output_is_the_same_however_it_is_cut(
    text: str, is_open: bool, calls: bool, cuts: list[int]
) -> None:
    def make() -> AnswerParser:
        return thinker(is_open=is_open, calls=calls)

    whole = parse(make, text)

    assert parse(make, text, cuts) == whole
    assert parse(make, text, [1]) == whole
    assert "</think>" not in whole.reasoning


def test_calls_are_read_after_a_thought_and_not_in_it() -> None:
    text = f"<think>I could write {CALL}</think>\n\n{CALL}"

    said = parse(lambda: thinker(is_open=False, calls=True), text, [4])

    assert said == Said(f"I could write {CALL}", "", [["add", '{"a": 1}']])


def test_a_thought_shows_at_once_but_for_what_may_end_it() -> None:
    parser = thinker(is_open=True)

    assert parser.push("Well, </th").reasoning == "Well, "
    assert (parser.num_held, parser.is_reasoning) == (4, True)
    assert parser.push("e end").reasoning == "</the end"
    assert parser.push("</think>").reasoning == ""
    assert not parser.is_reasoning


def test_marks_that_are_special_tokens_are_never_shown_and_a_call_ends_a_thought() -> None:
    marks = ReasoningMarks("[THINK]", "[/THINK]")

    def say(*parts: str, is_open: bool = False) -> Said:
        parser = AnswerParser(ReasoningParser(marks, is_open=is_open), MistralParser(FUNCTIONS))
        said = Said()
        for part in parts:
            said.add(parser.push_marker(part) if part.startswith("[") else parser.push(part))
        said.add(parser.finish())
        return said

    assert say("[THINK]", "Hm", "[/THINK]", "\nYes") == Said("Hm", "Yes")
    assert say("Hm", "[/THINK]", "Yes", "[/THINK]", "[THINK]", "!", is_open=True) == Said("Hm", "Yes!")
    assert say("Hm", "[TOOL_CALLS]", "f", "[ARGS]", "{}", is_open=True) == Said("Hm", "", [["f", "{}"]])
    assert say("Hi", "[THINK]", "Hm") == Said("", "HiHm")


@pytest.mark.parametrize("text", [" " * 60_000, "<think>" * 8_000, "<think>" + "</thin" * 10_000])
@pytest.mark.parametrize("is_open", [False, True])
def test_endless_outputs_take_linear_time_and_little_is_held_of_them(text: str, is_open: bool) -> None:
    parser, most = thinker(is_open=is_open), 0
    started_s = time.monotonic()
    for place in range(0, len(text), 5):
        parser.push(text[place : place + 5])
        most = max(most, parser.num_held)

    assert most <= MAX_BLANKS + len("<think>")
    assert time.monotonic() - started_s < 30  # half a second at most, were it alone; minutes, if not linear
