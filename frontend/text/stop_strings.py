"""Where a text ends: stop strings, found as the text comes, without leaking a part of one."""

from collections.abc import Sequence

import msgspec

from proto.errors import InvalidRequest


class Cut(msgspec.Struct, frozen=True):
    """`text` may go to the client. `stop` is the stop string that ended the text, None while it goes on."""

    text: str
    stop: str | None = None


class StopStrings:
    """One stream's. The stop that is complete first ends the text; of two at once, the longer one does.

    Holds back what may be the beginning of a stop string, and no more. The work is constant for each
    character and stop string, however the text is cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises InvalidRequest: a stop string is empty."""
        if "" in stops:
            raise InvalidRequest(field="stop", reason="a stop string is empty")
        # longest first: of several that end at one place, the first found is the longest
        self._matchers = [_Matcher(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""

    def push(self, text: str) -> Cut:
        """Nothing may be pushed after the cut that has a stop."""
        for place, char in enumerate(text, start=1):
            stop = self._first_complete(char)
            if stop is not None:
                seen = self._held + text[:place]
                self._held = ""
                return Cut(seen[: -len(stop)], stop)
        seen = self._held + text
        num_safe = len(seen) - max((matcher.num_matched for matcher in self._matchers), default=0)
        self._held = seen[num_safe:]
        return Cut(seen[:num_safe])

    def flush(self) -> str:
        """The text has ended otherwise: what was held back was no stop string. Another text may follow."""
        held, self._held = self._held, ""
        for matcher in self._matchers:
            matcher.num_matched = 0
        return held

    def _first_complete(self, char: str) -> str | None:
        complete = None
        for matcher in self._matchers:  # all of them: each must see every character
            if matcher.advance(char) and complete is None:
                complete = matcher.stop
        return complete


class _Matcher:
    """How much of one stop string the text ends with. Source: Knuth, Morris, Pratt (1977)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._borders = _borders(stop)

    def advance(self, char: str) -> bool:
        """Whether the text with `char` ends with the whole stop string."""
        while self.num_matched and self.stop[self.num_matched] != char:
            self.num_matched = self._borders[self.num_matched - 1]
        if self.stop[self.num_matched] == char:
            self.num_matched += 1
        return self.num_matched == len(self.stop)


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0]
    length = 0
    for char in stop[1:]:
        while length and stop[length] != char:
            length = borders[length - 1]
        length += stop[length] == char
        borders.append(length)
    return borders
