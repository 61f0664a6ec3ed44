"""The formats of calls: what real models write, what they should not, and every way to cut it."""

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.parsing.answer_parser import AnswerParser
from frontend.parsing.call_parser import MAX_KEPT, CallParser
from frontend.parsing.call_reader import MAX_HELD_CHARS
from frontend.parsing.hermes import HermesParser
from frontend.parsing.json_scanner import BLANKS
from frontend.parsing.llama3 import Llama3Parser
from frontend.parsing.markers import num_begun
from frontend.parsing.mistral import MistralParser
from tests.frontend.parsing.cutting import CUTS, FUNCTIONS, Said, calls_only, parse

PARSERS: list[type[CallParser]] = [HermesParser, Llama3Parser, MistralParser]
EVERY_CUT = [[size] for size in range(1, 9)]

ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=2),
    max_size=3,
)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(FUNCTIONS)), ARGUMENTS), min_size=1, max_size=3)
PLAIN = st.text("abc é\n.,", max_size=12)

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<", "[", "<|"),
    *(
        '{"name": "add", "arguments": ',
        '{"name": "add", "parameters": ',
        '{"name": "no',
        '"',
        "\\",
        "{}",
        "}",
    ),
    *('{"a": [1, "x"]}', '{"arguments": {}, "name": "look_up"}', "{'a': 1}", "add", ";", ",", "]", " ", "\n"),
    *("Well, ", " " * 150, "é", "\x00", "-1e", "null", ":"),
]
OUTPUTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


def write_hermes(before: str, calls: list[tuple[str, object]]) -> str:
    bodies = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return before + "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def write_llama3(before: str, calls: list[tuple[str, object]]) -> str:
    bodies = [json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls]
    return before + ("<|python_tag|>" if before else "") + "; ".join(bodies)


def write_mistral(before: str, calls: list[tuple[str, object]]) -> str:
    bodies = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return f"{before}[TOOL_CALLS] {json.dumps(bodies)}"


def write_new_mistral(before: str, calls: list[tuple[str, object]]) -> str:
    return before + "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


Writer = Callable[[str, list[tuple[str, object]]], str]
WRITERS: list[tuple[type[CallParser], Writer]] = [
    (HermesParser, write_hermes),
    (Llama3Parser, write_llama3),
    (MistralParser, write_mistral),
    (MistralParser, write_new_mistral),
]


@pytest.mark.parametrize(("parser", "write"), WRITERS)
@settings(max_examples=25)
@given(before=PLAIN, calls=CALLS, cuts=CUTS)
def test_what_is_written_as_a_model_writes_it_is_read_however_it_is_cut(
    parser: type[CallParser], write: Writer, before: str, calls: list[tuple[str, object]], cuts: list[int]
) -> None:
    said = parse(calls_only(parser), write(before, calls), cuts)

    assert said.content == (before if before.strip(BLANKS) else "")
    assert [(name, json.loads(arguments)) for name, arguments in said.calls] == calls


@pytest.mark.parametrize("parser", PARSERS)
@settings(max_examples=40)
@given(text=OUTPUTS, cuts=CUTS)
def test_any_output_is_the_same_however_it_is_cut_and_nothing_of_it_is_lost(
    parser: type[CallParser], text: str, cuts: list[int]
) -> None:
    whole = parse(calls_only(parser), text)

    assert parse(calls_only(parser), text, cuts) == whole
    assert parse(calls_only(parser), text, [1]) == whole
    if not whole.calls:
        assert whole.content == text
    rest = iter(text)
    assert all(char in rest for char in whole.content)  # in its order, and no character twice


@pytest.mark.parametrize("parser", PARSERS)
@settings(max_examples=40)
@given(text=OUTPUTS, cuts=CUTS)
def test_only_what_may_begin_a_marker_is_held_back_of_a_text(
    parser: type[CallParser], text: str, cuts: list[int]
) -> None:
    text = "Well: " + text
    if parse(calls_only(parser), text).calls or any(opener in text for opener in parser.openers):
        return
    answer = calls_only(parser)()
    for place, char in enumerate(text, start=1):
        answer.push(char)
        assert answer.num_held == num_begun(text[:place], 0, parser.openers)


WRITTEN = [
    (HermesParser, '\n<tool_call>\n{"name": "now"}\n</tool_call>', "", [["now", "{}"]]),
    (HermesParser, '<tool_call>{"name":"f","arguments":{}}</tool_call>', "", [["f", "{}"]]),
    (
        HermesParser,
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        "",
        [["f", '{"a": 1}']],
    ),
    (
        HermesParser,
        '<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>Done',
        "Done",
        [["f", '{"a": 1}']],
    ),
    (HermesParser, '<tool_call>{"name": "f", "arguments": {"a": 1}}\n</tool', "", [["f", '{"a": 1}']]),
    (
        HermesParser,
        '<tool_call>\n{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}\n</tool_call>\n',
        "",
        [["f", "{}"], ["g", "{}"]],
    ),
    (
        HermesParser,
        '<tool_call>{"name": "f", "arguments": {"t": "<tool_call>{}</tool_call>"}}</tool_call>',
        "",
        [["f", '{"t": "<tool_call>{}</tool_call>"}']],
    ),
    (Llama3Parser, '{"name": "add", "parameters": {"a": 1}}\n', "", [["add", '{"a": 1}']]),
    (
        Llama3Parser,
        '<|python_tag|>{"type": "function", "name": "other", "parameters": {}}',
        "",
        [["other", "{}"]],
    ),
    (
        Llama3Parser,
        '{"name": "add", "parameters": {}};\n{"name": "look_up", "parameters": {}}; that is all',
        "; that is all",
        [["add", "{}"], ["look_up", "{}"]],
    ),
    (
        MistralParser,
        'Yes.[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{"b": 2}',
        "Yes.",
        [["f", '{"a": 1}'], ["g", '{"b": 2}']],
    ),
    (MistralParser, '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS] {}', "", [["f", "{}"]]),
    (MistralParser, '[TOOL_CALLS]{"name": "f", "arguments": {}}', "", [["f", "{}"]]),
    (
        MistralParser,
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 3}, "id": "abcdefghi"}] and so on',
        "and so on",
        [["f", '{"a": 3}']],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("parser", "text", "content", "calls"), WRITTEN)
def test_what_models_are_known_to_write_is_read(
    parser: type[CallParser], text: str, content: str, calls: list[list[str]]
) -> None:
    for cuts in [[], *EVERY_CUT]:
        assert parse(calls_only(parser), text, cuts) == Said("", content, calls)


NO_CALLS = [
    (HermesParser, '<tool_call>\n{"name": f, "arguments": {}}\n</tool_call>'),
    (HermesParser, "<tool_call>\n{'name': 'f', 'arguments': {}}\n</tool_call>"),
    (HermesParser, '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    (HermesParser, '<tool_call>{"name": "f", "arguments": {b: 1}}</tool_call>'),
    (HermesParser, '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>'),
    (HermesParser, '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    (HermesParser, '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>'),
    (HermesParser, "<tool_call><function=f>\n</function></tool_call>"),
    (HermesParser, '<tool_call>{"name": "f", "argu'),
    (HermesParser, "A <tool_call> begins a call."),
    (Llama3Parser, '{"name": "Alice", "parameters": {}}'),
    (Llama3Parser, '{"name": "add"}'),
    (Llama3Parser, 'Call {"name": "add", "parameters": {}}'),
    (Llama3Parser, '<|python_tag|>print("hi")'),
    (Llama3Parser, '{"city": "Paris"}'),
    (MistralParser, "[TOOL_CALLS]"),
    (MistralParser, "[TOOL_CALLS][]"),
    (MistralParser, "[TOOL_CALLS]f means a call"),
    (MistralParser, "[TOOL_CALLS]" + "f" * 65 + "{}"),
    (MistralParser, "[TOOL_CALLS]f[ARGS]none"),
    (MistralParser, '[TOOL_CALLS][{"name": "f"'),
]


@pytest.mark.parametrize(("parser", "text"), NO_CALLS)
def test_what_is_no_call_is_content_as_it_stands(parser: type[CallParser], text: str) -> None:
    for cuts in [[], *EVERY_CUT]:
        assert parse(calls_only(parser), text, cuts) == Said("", text, [])


@pytest.mark.parametrize("after", ["", "</tool_call>Bye", '<tool_call>{"name": "g"}</tool_call>'])
def test_a_call_that_breaks_off_being_json_goes_on_to_the_next_marker(after: str) -> None:
    broken = '{"a": 1, b: 2}}'

    said = parse(calls_only(HermesParser), '<tool_call>{"name": "f", "arguments": ' + broken + after, [3])

    assert said.calls[0] == ["f", broken]
    assert said.content == ("Bye" if after.endswith("Bye") else "")
    assert [name for name, _ in said.calls[1:]] == (["g"] if "g" in after else [])


def test_arguments_come_as_they_are_written_and_their_line_breaks_as_json() -> None:
    parser = HermesParser(FUNCTIONS)

    first = parser.push('<tool_call>{"name": "f", "arguments": {"code": "a')
    second = parser.push(" = 1\nb")

    assert [(call.name, call.arguments) for call in first.calls] == [("f", '{"code": "a')]
    assert [(call.name, call.arguments) for call in second.calls] == [(None, " = 1\\u000ab")]


@pytest.mark.parametrize("before", ["", "Well"])
def test_markers_that_are_special_tokens_are_never_content(before: str) -> None:
    def say(*parts: str) -> Said:
        parser, said = AnswerParser(None, MistralParser(FUNCTIONS)), Said()
        for part in parts:
            is_marker = part.startswith("[") and part.endswith("]")
            said.add(parser.push_marker(part) if is_marker else parser.push(part))
        said.add(parser.finish())
        assert parser.num_held == 0
        return said

    one, other = ("add", "[ARGS]", '{"a": 1}'), ("f", "[CALL_ID]", "1", "[ARGS]", "{}")
    both = say(before, "[TOOL_CALLS]", *one, "[TOOL_CALLS]", *other)
    assert both == Said("", before, [["add", '{"a": 1}'], ["f", "{}"]])
    assert say(before, "[TOOL_CALLS]", "add", "[ARGS]", "what") == Said("", before + "addwhat", [])
    assert say(before, "[ARGS]", "x", "[TOOL_CALLS]") == Said("", before + "x", [])
    assert say("[TOOL_CALLS]", "f", "[ARGS]", '{"a": ', "[TOOL_CALLS]", "g", "[ARGS]", "{}").calls == [
        ["f", '{"a": '],
        ["g", "{}"],
    ]


LONG = 60_000
ENDLESS = [
    (HermesParser, "<tool_call>" * (LONG // 11)),
    (HermesParser, "<tool_call>" + " " * LONG),
    (HermesParser, " " * LONG),
    (HermesParser, "<tool_call>{" * (LONG // 12)),
    (HermesParser, '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * LONG),
    (HermesParser, '<tool_call>{"name": "f", "arguments": {"a": [' + "[" * LONG),
    (HermesParser, '<tool_call>{"arguments": {"a": "' + "<" * (2 * MAX_HELD_CHARS)),
    (HermesParser, '<tool_call>{"name": "f", "arguments": {"a": 1, b' + "</tool_cal" * (LONG // 10)),
    (HermesParser, '<tool_call>{"name": "f", "arguments": {}} ' + "\n" * LONG),
    (MistralParser, "[TOOL_CALLS]" + "f" * LONG),
    (MistralParser, "[TOOL_CALLS][" + "[TOOL_CALLS]f[ARGS]" * (LONG // 19)),
    (Llama3Parser, " " * LONG),
    (Llama3Parser, '{"name": "add", "parameters": {}};' * (LONG // 34)),
    (Llama3Parser, '{"name": "add", "parameters": {}}' + ";" * LONG),
    (Llama3Parser, "<|python_tag|>{" * (LONG // 15)),
]


@pytest.mark.parametrize(("parser", "text"), ENDLESS, ids=range(len(ENDLESS)))
def test_endless_outputs_take_linear_time_and_little_is_held_of_them(
    parser: type[CallParser], text: str
) -> None:
    answer, most = calls_only(parser)(), 0
    started_s = time.monotonic()
    for place in range(0, len(text), 5):
        answer.push(text[place : place + 5])
        most = max(most, answer.num_held)
    answer.finish()

    assert most <= MAX_HELD_CHARS + MAX_KEPT + 64
    assert time.monotonic() - started_s < 30  # a fifth of a second, were it alone; minutes, if not linear
