"""Whatever stands in the fields of tools is refused by name, or makes a grammar for every format."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.openai.chat_body import read_chat
from frontend.openai.chat_plan import plan_chat
from frontend.parsing.answer_grammar import AnswerGrammar, ThoughtState
from frontend.parsing.formats import CALL_PARSERS, REASONING_MARKS, Formats
from frontend.plan import Plan
from frontend.text.chat_messages import Chat
from proto.errors import InvalidRequest

PLAIN = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "f", "object", "function", "a b"])
)
WORDS = st.sampled_from(["type", "properties", "a", "enum", "x-guidance", "$ref", "required"])
SCHEMAS = st.dictionaries(WORDS, PLAIN | st.dictionaries(WORDS, PLAIN, max_size=2), max_size=3)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "g", "a-b_9"]) | PLAIN},
    optional={"description": PLAIN, "parameters": SCHEMAS | PLAIN, "strict": PLAIN},
)
TOOLS = st.fixed_dictionaries({"type": st.just("function") | PLAIN, "function": FUNCTIONS})
CHOICES = (
    st.sampled_from(["none", "auto", "required"])
    | st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTIONS})
    | PLAIN
)
FIELDS = st.fixed_dictionaries(
    {"tools": st.lists(TOOLS, max_size=3)},
    optional={
        "tool_choice": CHOICES,
        "parallel_tool_calls": PLAIN,
        "response_format": st.just({"type": "text"}),
    },
)


def plan_of(fields: dict[str, Any]) -> Plan:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return plan_chat(read_chat(json.dumps(body).encode()))


@settings(max_examples=60)
@given(fields=FIELDS, thought=st.sampled_from(get_args(ThoughtState)), special=st.booleans())
def test_wild_tools_are_refused_by_a_fields_name_or_can_be_led_to(
    fields: dict[str, Any], thought: ThoughtState, special: bool
) -> None:
    try:
        plan = plan_of(fields)
    except InvalidRequest as error:
        named = str(error.values["field"])
        assert named.split("[", maxsplit=1)[0].split(".", maxsplit=1)[0] in fields, error
        return
    for parser in CALL_PARSERS.values():
        formats = Formats(parser, REASONING_MARKS["think"])
        numbers = {marker: 7 + at for at, marker in enumerate(formats.markers)} if special else {}
        constraint = AnswerGrammar(formats, numbers, thought).constraint(plan.tools, plan.constraint)
        is_led = plan.tools is not None and (
            plan.tools.must_call or any(each.is_strict for each in plan.tools.functions)
        )
        assert (constraint is not None) == is_led


def test_a_template_is_shown_the_tools_as_they_were_given() -> None:
    function = {"name": "f", "description": "Does.", "parameters": {"type": "object"}, "strict": True}
    tools = [{"type": "function", "function": function}, {"type": "function", "function": {"name": "g"}}]

    [chat] = plan_of({"tools": tools}).prompts
    assert isinstance(chat, Chat)
    assert chat.tools == tools
    [bare] = plan_of({"tools": tools, "tool_choice": "none"}).prompts
    assert isinstance(bare, Chat)
    assert not bare.tools


@pytest.mark.parametrize(
    ("fields", "names", "must_call", "is_parallel"),
    [
        ({}, {"f", "g"}, False, True),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, {"f", "g"}, False, False),
        ({"tool_choice": "required"}, {"f", "g"}, True, True),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, {"g"}, True, False),
    ],
)
def test_a_choice_says_which_functions_may_be_called_and_whether_one_must(
    fields: dict[str, Any], names: set[str], must_call: bool, is_parallel: bool
) -> None:
    offered = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]

    tools = plan_of({"tools": offered, **fields}).tools

    assert tools is not None
    assert tools.names == names
    assert (tools.must_call, tools.is_parallel) == (must_call, is_parallel)
