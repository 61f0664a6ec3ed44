"""How a model speaks in one answer: what its prompt has begun, what leads it, what reads it."""

import pytest

from frontend.parsing.speech import Manner, Speech, find_speech
from frontend.parsing.tools import ToolFunction, Tools
from proto.constraints import Constraint
from proto.errors import InvalidRequest
from tests.frontend.parsing.cutting import Said
from tests.frontend.parsing.templates import MISTRAL, QWEN3, QWEN3_CODER, R1
from tests.tiny_model import CHAT_TEMPLATE

TOOLS = Tools((ToolFunction("add", {}),))
CALL = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def speech_of(template: str) -> Speech:
    special = {"[TOOL_CALLS]": 7, "[ARGS]": 8}
    return find_speech("auto", "auto", template, special.get)


def read(manner: Manner, text: str) -> Said:
    parser, said = manner.make_parser(), Said()
    assert parser is not None
    said.add(parser.push(text))
    said.add(parser.finish())
    return said


@pytest.mark.parametrize(
    ("prompt_end", "begun", "reasoning", "content"),
    [
        ("<|im_start|>assistant\n", None, "", "Hm</think>Yes"),
        ("<|im_start|>assistant\n<think>\n", None, "Hm", "Yes"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, "", "Hm</think>Yes"),
        ("<think><|im_end|>\n<|im_start|>assistant\n", None, "", "Hm</think>Yes"),
        ("<think>I wonder", "<think>I wonder", "Hm", "Yes"),
        ("<think>a</think>Now", "<think>a</think>Now", "", "Hm</think>Yes"),
    ],
)
def test_the_prompt_says_whether_a_thought_is_open(
    prompt_end: str, begun: str | None, reasoning: str, content: str
) -> None:
    manner = speech_of(QWEN3).manner(None, None, prompt_end, begun)

    assert read(manner, "Hm</think>Yes") == Said(reasoning, content)


def test_calls_are_read_only_where_tools_are_offered() -> None:
    speech = speech_of(QWEN3)

    assert read(speech.manner(TOOLS, None, ""), CALL) == Said("", "", [["add", "{}"]])
    assert read(speech.manner(None, None, ""), CALL) == Said("", CALL)
    assert speech_of(MISTRAL).manner(None, None, "").make_parser() is None


def test_special_tokens_of_the_model_mark_its_calls() -> None:
    manner = speech_of(MISTRAL).manner(TOOLS, None, "")

    assert manner.marker_tokens == {7: "[TOOL_CALLS]", 8: "[ARGS]"}
    must = speech_of(MISTRAL).manner(Tools(TOOLS.functions, must_call=True), None, "")
    assert must.constraint is not None
    assert "<[7]>" in must.constraint.text


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, QWEN3_CODER, R1, ""])
def test_a_model_that_takes_no_tools_or_writes_its_calls_in_an_unknown_way_is_refused_them(
    template: str,
) -> None:
    with pytest.raises(InvalidRequest, match="tools"):
        speech_of(template).manner(TOOLS, None, "")


def test_an_answer_that_is_led_as_a_whole_has_no_thought() -> None:
    whole = Constraint("regex", "x*", "guided_regex")

    manner = speech_of(R1).manner(None, whole, "<think>\n")

    assert (manner.constraint, manner.make_parser()) == (whole, None)
