"""Which format a model speaks, found in its chat template."""

import pytest

from frontend.parsing.formats import find_formats, takes_tools
from frontend.parsing.hermes import HermesParser
from frontend.parsing.llama3 import Llama3Parser
from frontend.parsing.mistral import MistralParser
from tests.frontend.parsing.templates import LLAMA31, LLAMA32, MISTRAL, QWEN2, QWEN3, QWEN3_CODER, R1
from tests.tiny_model import CHAT_TEMPLATE

TEMPLATES = [
    (QWEN2, HermesParser, False),
    (QWEN3, HermesParser, True),
    (QWEN3_CODER, None, False),
    (LLAMA31, Llama3Parser, False),
    (LLAMA32, Llama3Parser, False),
    (MISTRAL, MistralParser, False),
    (R1, None, True),
    (CHAT_TEMPLATE, None, False),
    ("", None, False),
]


@pytest.mark.parametrize(("template", "calls", "reasons"), TEMPLATES)
def test_a_template_shows_how_its_model_writes_calls_and_thoughts(
    template: str, calls: type | None, reasons: bool
) -> None:
    found = find_formats("auto", "auto", template)

    assert found.calls is calls
    assert (found.reasoning is not None) == reasons


def test_a_name_wins_over_the_template_and_one_that_is_not_known_is_none() -> None:
    assert find_formats("mistral", "none", QWEN3).calls is MistralParser
    assert find_formats("mistral", "none", QWEN3).reasoning is None
    assert find_formats("none", "think", MISTRAL).calls is None
    assert find_formats("of-tomorrow", "of-tomorrow", QWEN3).markers == ()


def test_all_marks_of_a_format_may_be_special_tokens() -> None:
    assert find_formats("mistral", "think", "").markers == (
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<think>",
        "</think>",
    )


def test_a_template_that_never_names_tools_shows_none_to_its_model() -> None:
    assert takes_tools(QWEN2)
    assert not takes_tools(CHAT_TEMPLATE)
