"""Calls as Mistral writes them: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or, newer, one by one.

The newer way is `[TOOL_CALLS]name[ARGS]{…}`, in some versions with `[CALL_ID]id` before the arguments. The
marks are special tokens; what comes without `[ARGS]` has lost it on its way and is read all the same.
"""

import json
import string
from collections.abc import Iterator, Mapping

from frontend.parsing.call_parser import CallParser, skip_blanks
from frontend.parsing.call_reader import CallReader, read_arguments
from frontend.parsing.call_rules import argument_rules, mark_term, more_calls, object_rules
from frontend.parsing.delta import Delta
from frontend.parsing.tools import Tools

OPENER = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"
MAX_NAME_CHARS = 64

_NAME_CHARS = frozenset(string.ascii_letters + string.digits + "_-.")


class MistralParser(CallParser):
    openers = (OPENER,)
    others = (ARGUMENTS, CALL_ID)

    def __init__(self, functions: frozenset[str]) -> None:
        super().__init__(functions)
        self._is_list = False
        self._words: list[str] = []
        self._word = ""

    @classmethod
    def rules(cls, tools: Tools, special: Mapping[str, int]) -> Iterator[str]:
        """The newer way where the model has the mark of it."""
        if ARGUMENTS not in special:
            others = more_calls(tools, '", " call')
            yield f'calls: SPACE? "[" call {others} "]"'
            yield 'SPACE: " "'
            yield from object_rules(tools.functions, "arguments")
            return
        opener, arguments = mark_term(OPENER, special), mark_term(ARGUMENTS, special)
        yield f"calls: call {more_calls(tools, f'{opener} call')}"
        names = (json.dumps(each.name) for each in tools.functions)
        yield "call: " + " | ".join(f"{name} {arguments} args{at}" for at, name in enumerate(names))
        yield from argument_rules(tools.functions)

    def push_marker(self, marker: str) -> Delta:
        if marker in self.others and self.is_in(self._in_word):
            self._end_word(marker)
            return Delta()
        return super().push_marker(marker)

    def open(self, text: str, place: int) -> int:
        char = text[place]
        self._is_list = char == "["
        if char == "{":
            self.begin_call(CallReader())
        elif char == "[":
            self.keep(char)
            self.to_state(self._lead_to_item)
            return place + 1
        elif char in _NAME_CHARS:
            self._words, self._word = [], ""
            self.to_state(self._in_word)
        else:
            self.fall_back()
        return place

    def go_on(self, text: str, place: int) -> int:
        place = skip_blanks(text, place)
        if place == len(text):
            return place
        if self._is_list and text[place] == ",":
            self.keep(",")
            self.to_state(self._lead_to_item)
            return place + 1
        is_end = self._is_list and text[place] == "]"
        self.to_state(self.in_text)
        return place + is_end

    def _lead_to_item(self, text: str, place: int) -> int:
        return self.lead(text, place, self._item)

    def _item(self, text: str, place: int) -> int:
        return self.expect_call(text, place, CallReader())

    def _in_word(self, text: str, place: int) -> int:
        """A name, or the id after it."""
        end = place
        while end < len(text) and text[end] in _NAME_CHARS:
            end += 1
        self._word += text[place:end]
        self.keep(text[place:end])
        if len(self._word) > MAX_NAME_CHARS:
            self.fall_back()
            return end
        return end if end == len(text) else self._after_word(text, end)

    def _after_word(self, text: str, place: int) -> int:
        rest = text[place:]
        for marker in self.others:
            if rest.startswith(marker):
                self.keep(marker)
                self._end_word(marker)
                return place + len(marker)
        if any(marker.startswith(rest) for marker in self.others):
            return self.hold(text, place)
        if text[place] == "{":
            self._end_word(ARGUMENTS)
        else:
            self.fall_back()
        return place

    def _end_word(self, marker: str) -> None:
        self._words.append(self._word)
        self._word = ""
        if marker == ARGUMENTS:
            self.to_state(self._lead_to_arguments)

    def _lead_to_arguments(self, text: str, place: int) -> int:
        return self.lead(text, place, self._arguments)

    def _arguments(self, text: str, place: int) -> int:
        return self.expect_call(text, place, read_arguments(self._words[0]))
