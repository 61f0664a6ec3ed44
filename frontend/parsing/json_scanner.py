"""Where one JSON value ends, found character by character, and whether it is one at all."""

from collections.abc import Callable
from enum import Enum, auto

MAX_DEPTH = 64
BLANKS = " \t\r\n"

_ESCAPES = '"\\/bfnrt'
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = frozenset("0123456789")
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}


class Step(Enum):
    """What a character was: inside the value, its last one, the first one after it, or a mistake."""

    GOES_ON = auto()
    ENDS = auto()
    ENDED_BEFORE = auto()
    IS_WRONG = auto()


class JsonScanner:
    """One value. Lists and objects lie within each other at no more than `MAX_DEPTH` levels.

    Nothing may be pushed after its end, or a mistake. The work is constant for each character. Control
    characters stand in strings as models write them, bare; `as_json` says how they must be written.
    """

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._is_key = False
        self._rest = ""
        self._num_hex = 0
        self._take: Callable[[str], Step] = self._take_value

    def advance(self, char: str) -> Step:
        return self._take(char)

    def as_json(self, char: str) -> str:
        """`char`, the next one, as it stands in valid JSON."""
        is_bare = char < " " and self._take == self._take_string
        return f"\\u{ord(char):04x}" if is_bare else char

    def _take_value(self, char: str) -> Step:
        if char in BLANKS:
            return Step.GOES_ON
        match char:
            case "{":
                return self._open("}", self._take_first_key)
            case "[":
                return self._open("]", self._take_first_item)
            case '"':
                self._is_key = False
                self._take = self._take_string
            case "t" | "f" | "n":
                self._rest = _LITERALS[char]
                self._take = self._take_literal
            case "-":
                self._take = self._take_first_digit
            case "0":
                self._take = self._take_point
            case _ if char in _DIGITS:
                self._take = self._take_digits
            case _:
                return Step.IS_WRONG
        return Step.GOES_ON

    def _open(self, closer: str, take: Callable[[str], Step]) -> Step:
        if len(self._closers) == MAX_DEPTH:
            return Step.IS_WRONG
        self._closers.append(closer)
        self._take = take
        return Step.GOES_ON

    def _take_first_item(self, char: str) -> Step:
        return self._close(char) if char == "]" else self._leave_blanks(char, self._take_value)

    def _take_first_key(self, char: str) -> Step:
        return self._close(char) if char == "}" else self._take_key(char)

    def _take_key(self, char: str) -> Step:
        if char != '"':
            return Step.GOES_ON if char in BLANKS else Step.IS_WRONG
        self._is_key = True
        self._take = self._take_string
        return Step.GOES_ON

    def _take_colon(self, char: str) -> Step:
        if char != ":":
            return Step.GOES_ON if char in BLANKS else Step.IS_WRONG
        self._take = self._take_value
        return Step.GOES_ON

    def _take_comma(self, char: str) -> Step:
        if char == ",":
            self._take = self._take_key if self._closers[-1] == "}" else self._take_value
            return Step.GOES_ON
        return self._close(char) if char not in BLANKS else Step.GOES_ON

    def _take_string(self, char: str) -> Step:
        if char == "\\":
            self._take = self._take_escape
        elif char == '"':
            if not self._is_key:
                return self._end()
            self._take = self._take_colon
        return Step.GOES_ON

    def _take_escape(self, char: str) -> Step:
        if char == "u":
            self._num_hex = 0
            self._take = self._take_hex
            return Step.GOES_ON
        self._take = self._take_string
        return Step.GOES_ON if char in _ESCAPES else Step.IS_WRONG

    def _take_hex(self, char: str) -> Step:
        self._num_hex += 1
        if self._num_hex == 4:
            self._take = self._take_string
        return Step.GOES_ON if char in _HEX else Step.IS_WRONG

    def _take_literal(self, char: str) -> Step:
        if char != self._rest[0]:
            return Step.IS_WRONG
        self._rest = self._rest[1:]
        return Step.GOES_ON if self._rest else self._end()

    def _take_first_digit(self, char: str) -> Step:
        self._take = self._take_point if char == "0" else self._take_digits
        return Step.GOES_ON if char in _DIGITS else Step.IS_WRONG

    def _take_digits(self, char: str) -> Step:
        return Step.GOES_ON if char in _DIGITS else self._take_point(char)

    def _take_point(self, char: str) -> Step:
        if char != ".":
            return self._take_exponent_mark(char)
        self._take = self._take_first_decimal
        return Step.GOES_ON

    def _take_first_decimal(self, char: str) -> Step:
        self._take = self._take_decimals
        return Step.GOES_ON if char in _DIGITS else Step.IS_WRONG

    def _take_decimals(self, char: str) -> Step:
        return Step.GOES_ON if char in _DIGITS else self._take_exponent_mark(char)

    def _take_exponent_mark(self, char: str) -> Step:
        if char not in "eE":
            return self._take_after_number(char)
        self._take = self._take_exponent_sign
        return Step.GOES_ON

    def _take_exponent_sign(self, char: str) -> Step:
        self._take = self._take_first_exponent if char in "+-" else self._take_exponent
        return Step.GOES_ON if char in _DIGITS or char in "+-" else Step.IS_WRONG

    def _take_first_exponent(self, char: str) -> Step:
        self._take = self._take_exponent
        return Step.GOES_ON if char in _DIGITS else Step.IS_WRONG

    def _take_exponent(self, char: str) -> Step:
        return Step.GOES_ON if char in _DIGITS else self._take_after_number(char)

    def _take_after_number(self, char: str) -> Step:
        """Only what follows a number says that it has ended."""
        if not self._closers:
            return Step.ENDED_BEFORE
        self._take = self._take_comma
        return self._take(char)

    def _leave_blanks(self, char: str, take: Callable[[str], Step]) -> Step:
        if char in BLANKS:
            return Step.GOES_ON
        self._take = take
        return take(char)

    def _close(self, char: str) -> Step:
        if char != self._closers[-1]:
            return Step.IS_WRONG
        self._closers.pop()
        return self._end()

    def _end(self) -> Step:
        if not self._closers:
            return Step.ENDS
        self._take = self._take_comma
        return Step.GOES_ON
