"""All of an answer told apart as it comes: first its reasoning, then content and calls."""

from frontend.parsing.call_parser import CallParser
from frontend.parsing.delta import Delta, join_calls
from frontend.parsing.reasoning import Part, ReasoningParser


class AnswerParser:
    """One answer's. None for a model that does not reason, or an answer that may call nothing."""

    def __init__(self, reasoning: ReasoningParser | None, calls: CallParser | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def num_held(self) -> int:
        """Characters of which it is not known yet what they are."""
        return sum(each.num_held for each in (self._reasoning, self._calls) if each is not None)

    @property
    def tells_reasoning(self) -> bool:
        return self._reasoning is not None

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning is not None and self._reasoning.is_reasoning

    @property
    def has_called(self) -> bool:
        return self._calls is not None and self._calls.has_called

    def push(self, text: str) -> Delta:
        part = Part(rest=text) if self._reasoning is None else self._reasoning.push(text)
        return self._tell(part)

    def push_marker(self, marker: str) -> Delta:
        """A special token that says how the text is meant, and is not shown."""
        before = Delta() if self._reasoning is None else self._tell(self._reasoning.push_marker(marker))
        return before if self._calls is None else joined(before, self._calls.push_marker(marker))

    def finish(self) -> Delta:
        before = Delta() if self._reasoning is None else self._tell(self._reasoning.finish())
        return before if self._calls is None else joined(before, self._calls.finish())

    def _tell(self, part: Part) -> Delta:
        if self._calls is None:
            return Delta(part.reasoning, part.rest)
        return joined(Delta(part.reasoning), self._calls.push(part.rest))


def joined(first: Delta, second: Delta) -> Delta:
    calls = join_calls(first.calls, second.calls)
    return Delta(first.reasoning + second.reasoning, first.content + second.content, calls)
