"""Calls as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from collections.abc import Iterator, Mapping

from frontend.parsing.call_parser import CallParser, skip_blanks
from frontend.parsing.call_reader import CallReader
from frontend.parsing.call_rules import mark_term, more_calls, object_rules
from frontend.parsing.tools import Tools

OPENER = "<tool_call>"
CLOSER = "</tool_call>"


class HermesParser(CallParser):
    openers = (OPENER,)
    closers = (CLOSER,)

    @classmethod
    def rules(cls, tools: Tools, special: Mapping[str, int]) -> Iterator[str]:
        opener, closer = mark_term(OPENER, special), mark_term(CLOSER, special)
        others = more_calls(tools, f'"\\n" {opener} body')
        yield f"calls: body {others}"
        yield f'body: "\\n" call "\\n" {closer}'
        yield from object_rules(tools.functions, "arguments")

    def open(self, text: str, place: int) -> int:
        return self.expect_call(text, place, CallReader())

    def go_on(self, text: str, place: int) -> int:
        """Models forget the closing marker, or write several calls before one."""
        place = skip_blanks(text, place)
        rest = text[place : place + len(CLOSER)]
        if rest == CLOSER:
            self.to_state(self.in_text)
            return place + len(CLOSER)
        if CLOSER.startswith(rest):
            return self.hold(text, place)
        if rest.startswith("{"):
            self.begin_call(CallReader())
        else:
            self.to_state(self.in_text)
        return place
