"""Thoughts before an answer, told apart from it: `<think>…</think>`.

Whether a thought is open already is for the prompt to say: some templates open it there, some close it again
at once. A thought that never ends is all there is; one that begins later in a text is a part of that text.
"""

from collections.abc import Callable

import msgspec

from frontend.parsing.json_scanner import BLANKS
from frontend.parsing.markers import find_marker, num_begun

MAX_BLANKS = 256
"""How much white space before a thought waits to be told apart."""


class ReasoningMarks(msgspec.Struct, frozen=True):
    opener: str
    closer: str


class Part(msgspec.Struct, frozen=True):
    """`rest` comes after all reasoning, and is what the answer is."""

    reasoning: str = ""
    rest: str = ""


class ReasoningParser:
    """One answer's. All parts joined are the same however the text was cut; its work is linear.

    Holds back what may be the beginning of a mark, and no more. White space after a mark belongs to it.
    """

    def __init__(self, marks: ReasoningMarks, *, is_open: bool) -> None:
        self._marks = marks
        self._pending = ""
        self._reasoning: list[str] = []
        self._rest: list[str] = []
        self._take: Callable[[str], str] = self._take_opened if is_open else self._take_first

    @property
    def num_held(self) -> int:
        return len(self._pending)

    @property
    def is_reasoning(self) -> bool:
        return self._take in (self._take_opened, self._take_reasoning)

    def push(self, text: str) -> Part:
        text = self._pending + text
        self._pending = ""
        while text and not self._pending:
            text = self._take(text)
        return self._take_part()

    def push_marker(self, marker: str) -> Part:
        """A marker that is a special token: one of ours, or one that begins a call and so ends a thought."""
        part = self.finish()
        if marker == self._marks.opener and self._take == self._take_first:
            self._take = self._take_opened
        elif marker != self._marks.opener:
            self._take = self._take_blanks if self.is_reasoning else self._take_rest
        return part

    def finish(self) -> Part:
        pending, self._pending = self._pending, ""
        (self._reasoning if self.is_reasoning else self._rest).append(pending)
        return self._take_part()

    def _take_part(self) -> Part:
        part = Part("".join(self._reasoning), "".join(self._rest))
        self._reasoning.clear()
        self._rest.clear()
        return part

    # Each state takes the text and gives what is left of it for the next one.

    def _hold(self, text: str) -> str:
        self._pending = text
        return ""

    def _take_first(self, text: str) -> str:
        """Before anything but white space has come."""
        solid = text.lstrip(BLANKS)
        if len(text) - len(solid) <= MAX_BLANKS:
            if solid.startswith(self._marks.opener):
                self._take = self._take_opened
                return solid.removeprefix(self._marks.opener)
            if self._marks.opener.startswith(solid):
                return self._hold(text)
        self._take = self._take_rest
        return text

    def _take_opened(self, text: str) -> str:
        """At the beginning of a thought; a model may open once more what the prompt has opened."""
        solid = text.lstrip(BLANKS)
        if solid.startswith(self._marks.opener):
            return solid.removeprefix(self._marks.opener)
        if self._marks.opener.startswith(solid):
            return self._hold(solid)
        self._take = self._take_reasoning
        return solid

    def _take_reasoning(self, text: str) -> str:
        marks = (self._marks.closer,)
        found = find_marker(text, 0, marks)
        if found is None:
            end = len(text) - num_begun(text, 0, marks)
            self._reasoning.append(text[:end])
            return self._hold(text[end:])
        self._reasoning.append(text[: found.start])
        self._take = self._take_blanks
        return text[found.end :]

    def _take_blanks(self, text: str) -> str:
        solid = text.lstrip(BLANKS)
        if solid:
            self._take = self._take_rest
        return solid

    def _take_rest(self, text: str) -> str:
        self._rest.append(text)
        return ""
