"""Which format a model speaks: by the name that its card gives, or as its chat template shows."""

import re
from collections.abc import Mapping

import msgspec

from frontend.parsing.call_parser import CallParser
from frontend.parsing.hermes import HermesParser
from frontend.parsing.llama3 import Llama3Parser
from frontend.parsing.mistral import MistralParser
from frontend.parsing.reasoning import ReasoningMarks

CALL_PARSERS: Mapping[str, type[CallParser]] = {
    "hermes": HermesParser,
    "llama3": Llama3Parser,
    "mistral": MistralParser,
}
REASONING_MARKS: Mapping[str, ReasoningMarks] = {"think": ReasoningMarks("<think>", "</think>")}

_AUTO = "auto"
_TOOLS = re.compile(r"\btools\b")
_OTHER_HERMES = ("<function=", "<arg_key>")
"""What models write between `<tool_call>` and its end that is no JSON."""


class Formats(msgspec.Struct, frozen=True):
    """None: a model that calls nothing, or does not reason, or does so in a way not known here."""

    calls: type[CallParser] | None = None
    reasoning: ReasoningMarks | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """All that may be special tokens."""
        calls = () if self.calls is None else (*self.calls.openers, *self.calls.closers, *self.calls.others)
        return calls if self.reasoning is None else (*calls, self.reasoning.opener, self.reasoning.closer)


def find_formats(tool_parser: str, reasoning_parser: str, template: str) -> Formats:
    """Those named; `auto`: what `template` shows. A name of a later version is as good as none.

    Args:
        template: the source of the chat template; empty for a model without one.
    """
    calls = _shown_calls(template) if tool_parser == _AUTO else tool_parser
    reasoning = _shown_reasoning(template) if reasoning_parser == _AUTO else reasoning_parser
    return Formats(CALL_PARSERS.get(calls), REASONING_MARKS.get(reasoning))


def takes_tools(template: str) -> bool:
    """Whether it shows tools to its model."""
    return _TOOLS.search(template) is not None


def _shown_calls(template: str) -> str:
    """What the template writes of calls that were made is what the model has learnt to write."""
    if not takes_tools(template):
        return ""
    keys = template.replace("\\", "")
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template and '"arguments"' in keys:
        return "" if any(mark in template for mark in _OTHER_HERMES) else "hermes"
    is_llama3 = "<|python_tag|>" in template or ("ipython" in template and '"parameters"' in keys)
    return "llama3" if is_llama3 else ""


def _shown_reasoning(template: str) -> str:
    return next((name for name, marks in REASONING_MARKS.items() if marks.closer in template), "")
