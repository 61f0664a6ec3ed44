"""How one model speaks, and in which manner it does so in one answer."""

from collections.abc import Callable, Mapping

import msgspec

from frontend.parsing.answer_grammar import AnswerGrammar, ThoughtState
from frontend.parsing.answer_parser import AnswerParser
from frontend.parsing.formats import Formats, find_formats, takes_tools
from frontend.parsing.reasoning import ReasoningParser
from frontend.parsing.tools import Tools
from proto.constraints import Constraint
from proto.errors import InvalidRequest


class Manner(msgspec.Struct, frozen=True):
    """Of one answer: what leads it, and how it is read. None of either for what is just text."""

    constraint: Constraint | None = None
    formats: Formats = Formats()
    thought: ThoughtState = "closed"
    functions: frozenset[str] | None = None
    marker_tokens: Mapping[int, str] = {}

    def make_parser(self) -> AnswerParser | None:
        """One for each choice."""
        marks, calls = self.formats.reasoning, self.formats.calls
        if marks is None and (calls is None or self.functions is None):
            return None
        return AnswerParser(
            None if marks is None else ReasoningParser(marks, is_open=self.thought == "open"),
            None if calls is None or self.functions is None else calls(self.functions),
        )


class Speech(msgspec.Struct, frozen=True):
    """Of one model. `marker_tokens` are the special tokens among the marks of its formats."""

    formats: Formats
    takes_tools: bool
    marker_tokens: Mapping[int, str]

    def manner(
        self, tools: Tools | None, answer: Constraint | None, prompt_end: str, begun: str | None = None
    ) -> Manner:
        """How the answer to a chat is led and read.

        Args:
            prompt_end: the last characters of the prompt.
            begun: what the client has had the model say already, if its last message goes on.

        Raises:
            InvalidRequest: the model takes no tools, or `answer` does not go with them.
        """
        if tools is not None:
            self.check_tools()
        thought = self._thought(prompt_end, begun)
        grammar = AnswerGrammar(
            self.formats, {name: token for token, name in self.marker_tokens.items()}, thought
        )
        constraint = grammar.constraint(tools, answer)
        formats = self.formats
        if constraint is not None and constraint is answer:  # it is all of the answer: no thought comes first
            formats = Formats(formats.calls, None)
        functions = None if tools is None else tools.names
        return Manner(constraint, formats, thought, functions, self.marker_tokens)

    def check_tools(self) -> None:
        """
        Raises:
            InvalidRequest: the model takes none.
        """
        if not self.takes_tools:
            raise InvalidRequest(field="tools", reason="the chat template of this model takes none")
        if self.formats.calls is None:
            reason = "how this model writes calls is not known here (see worker.tool_parser)"
            raise InvalidRequest(field="tools", reason=reason)

    def _thought(self, prompt_end: str, begun: str | None) -> ThoughtState:
        marks = self.formats.reasoning
        if marks is None:
            return "closed"
        if begun is not None:
            return "open" if begun.rfind(marks.opener) > begun.rfind(marks.closer) else "closed"
        end = prompt_end.rstrip()
        if end.endswith(marks.opener):
            return "open"
        return "closed" if end.endswith(marks.closer) else "unsaid"


def find_speech(
    tool_parser: str, reasoning_parser: str, template: str, special_token: Callable[[str], int | None]
) -> Speech:
    """
    Args:
        template: the source of the chat template; empty for a model without one.
        special_token: the number of a special token by its name; None for any other text.
    """
    formats = find_formats(tool_parser, reasoning_parser, template)
    found = {special_token(marker): marker for marker in formats.markers}
    tokens = {token: marker for token, marker in found.items() if token is not None}
    return Speech(formats, takes_tools(template), tokens)
