"""One call of a tool, read from its JSON: its name, and its arguments as they come.

Nothing is told of a call before it is sure to be one: its name is known, and its arguments begin as an object
does. What has been told is never taken back.
"""

from collections.abc import Callable

import msgspec

from frontend.parsing.json_scanner import BLANKS, JsonScanner, Step

MAX_HELD_CHARS = 64 * 1024
"""Of a call of which nothing is told yet."""

_NAME_KEY = "name"
_ARGUMENTS_KEYS = frozenset(("arguments", "parameters"))
_DECODE = msgspec.json.Decoder().decode


class ArgumentsReader:
    """The object of the arguments, from its first brace on. `take` gives what more may be told of it."""

    def __init__(self) -> None:
        self._scanner = JsonScanner()
        self._new: list[str] = []
        self._num_marks = 0

    @property
    def is_sure(self) -> bool:
        """Whether it begins as an object does: a brace, and a quote or the other brace."""
        return self._num_marks >= 2

    def advance(self, char: str) -> Step:
        if not self._num_marks and char != "{":
            return Step.IS_WRONG
        text = self._scanner.as_json(char)
        step = self._scanner.advance(char)
        if step is not Step.IS_WRONG:
            self._num_marks += self._num_marks < 2 and char not in BLANKS
            self._new.append(text)
        return step

    def take(self) -> str:
        new = "".join(self._new)
        self._new.clear()
        return new


class CallReader:
    """`{"name": …, "arguments": {…}}`, from its first brace on; `parameters` is the same as `arguments`.

    Args:
        functions: the names that it may have; None: any.
        needs_arguments: no: a call without any has `{}`.
    """

    def __init__(self, functions: frozenset[str] | None = None, *, needs_arguments: bool = False) -> None:
        self._functions = functions
        self._needs_arguments = needs_arguments
        self._held: list[str] = []
        self._name: str | None = None
        self._arguments: ArgumentsReader | None = None
        self._has_begun = False
        self._is_whole = False
        self._key: list[str] = []
        self._value: list[str] = []
        self._scanner = JsonScanner()
        self._take: Callable[[str], Step] = self._take_brace

    @property
    def has_begun(self) -> bool:
        """Whether it is sure to be a call."""
        return self._has_begun

    @property
    def is_whole(self) -> bool:
        """Whether its arguments have ended."""
        return self._is_whole

    @property
    def name(self) -> str:
        assert self._name is not None
        return self._name

    @property
    def held(self) -> str:
        """All of it, if nothing is told of it yet."""
        return "".join(self._held)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def advance(self, char: str) -> Step:
        """A character that is wrong, or comes after the end, is not the reader's."""
        step = self._take(char)
        if not self._has_begun and step is not Step.IS_WRONG:
            self._held.append(char)
            if len(self._held) > MAX_HELD_CHARS:
                self._held.pop()
                return Step.IS_WRONG
            self._begin_if_sure()
        return step

    def begin_named(self, name: str) -> None:
        """All that comes is the arguments of a call of `name`."""
        self._name = name
        self._arguments = ArgumentsReader()
        self._take = self._take_all_arguments

    def take_arguments(self) -> str:
        """What more of them may be told, once it has begun."""
        if self._arguments is None:
            return "{}" if self._is_whole else ""
        return self._arguments.take()

    def _begin_if_sure(self) -> None:
        is_sure = self._is_whole or (self._arguments is not None and self._arguments.is_sure)
        if self._name is not None and is_sure:
            self._has_begun = True
            self._held.clear()

    def _take_brace(self, char: str) -> Step:
        self._take = self._take_first_key
        return Step.GOES_ON if char == "{" else Step.IS_WRONG

    def _take_first_key(self, char: str) -> Step:
        return Step.IS_WRONG if char == "}" else self._take_key(char)

    def _take_key(self, char: str) -> Step:
        if char != '"':
            return Step.GOES_ON if char in BLANKS else Step.IS_WRONG
        self._key = []
        self._scanner = JsonScanner()
        self._take = self._take_in_key
        return self._take(char)

    def _take_in_key(self, char: str) -> Step:
        self._key.append(char)
        step = self._scanner.advance(char)
        if step is Step.ENDS:
            self._take = self._take_colon
            return Step.GOES_ON
        return step

    def _take_colon(self, char: str) -> Step:
        if char != ":":
            return Step.GOES_ON if char in BLANKS else Step.IS_WRONG
        self._take = self._take_value
        return Step.GOES_ON

    def _take_value(self, char: str) -> Step:
        if char in BLANKS:
            return Step.GOES_ON
        key = _decode_string(self._key)
        if key in _ARGUMENTS_KEYS:
            if self._arguments is not None:
                return Step.IS_WRONG
            self._arguments = ArgumentsReader()
            self._take = self._take_in_arguments
        elif key == _NAME_KEY and (self._name is not None or char != '"'):
            return Step.IS_WRONG
        else:
            self._value = []
            self._scanner = JsonScanner()
            self._take = self._take_in_name if key == _NAME_KEY else self._take_in_other
        return self._take(char)

    def _take_in_arguments(self, char: str) -> Step:
        assert self._arguments is not None
        step = self._arguments.advance(char)
        if step is Step.ENDS:
            self._is_whole = True
            self._take = self._take_comma
            return Step.GOES_ON
        return step

    def _take_all_arguments(self, char: str) -> Step:
        assert self._arguments is not None
        step = self._arguments.advance(char)
        self._is_whole = step is Step.ENDS
        return step

    def _take_in_name(self, char: str) -> Step:
        self._value.append(char)
        step = self._scanner.advance(char)
        if step is not Step.ENDS:
            return step
        name = _decode_string(self._value)
        if not name or (self._functions is not None and name not in self._functions):
            return Step.IS_WRONG
        self._name = name
        self._take = self._take_comma
        return Step.GOES_ON

    def _take_in_other(self, char: str) -> Step:
        """What models write besides: an id, a type."""
        step = self._scanner.advance(char)
        if step is Step.ENDED_BEFORE:
            self._take = self._take_comma
            return self._take(char)
        if step is Step.ENDS:
            self._take = self._take_comma
            return Step.GOES_ON
        return step

    def _take_comma(self, char: str) -> Step:
        if char == ",":
            self._take = self._take_key
            return Step.GOES_ON
        if char in BLANKS:
            return Step.GOES_ON
        if char != "}" or self._name is None or (self._arguments is None and self._needs_arguments):
            return Step.IS_WRONG
        self._is_whole = True
        return Step.ENDS


def read_arguments(name: str) -> CallReader:
    """The call of `name`, from the first brace of its arguments to their last one."""
    reader = CallReader()
    reader.begin_named(name)
    return reader


def _decode_string(chars: list[str]) -> str | None:
    try:
        decoded = _DECODE("".join(chars))
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return decoded if isinstance(decoded, str) else None
