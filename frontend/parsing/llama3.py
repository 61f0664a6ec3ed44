"""Calls as Llama 3 writes them: `{"name": …, "parameters": {…}}`, first of all or after `<|python_tag|>`.

Several follow each other with a semicolon between them. Without the tag, nothing but its place and a name
that the request offers tells a call from an answer in JSON; so an object later in a text is no call.
"""

from collections.abc import Iterator, Mapping

from frontend.parsing.call_parser import CallParser, skip_blanks
from frontend.parsing.call_reader import CallReader
from frontend.parsing.call_rules import object_rules
from frontend.parsing.tools import Tools

OPENER = "<|python_tag|>"
_SEPARATORS = ";,"


class Llama3Parser(CallParser):
    openers = (OPENER,)
    begins_bare = True

    @classmethod
    def rules(cls, tools: Tools, special: Mapping[str, int]) -> Iterator[str]:
        """One call: the model's own template takes no two of one message."""
        yield "calls: call"
        yield from object_rules(tools.functions, "parameters")

    def begin(self, text: str, place: int) -> int:
        return self.lead(text, place, self._bare)

    def open(self, text: str, place: int) -> int:
        return self.expect_call(text, place, CallReader())

    def go_on(self, text: str, place: int) -> int:
        place = skip_blanks(text, place)
        if place == len(text):
            return place
        if text[place] in _SEPARATORS:
            self.keep(text[place])
            self.to_state(self._after_separator)
            return place + 1
        return self._bare(text, place)

    def _after_separator(self, text: str, place: int) -> int:
        return self.lead(text, place, self._bare)

    def _bare(self, text: str, place: int) -> int:
        return self.expect_call(text, place, CallReader(self._functions, needs_arguments=True))
