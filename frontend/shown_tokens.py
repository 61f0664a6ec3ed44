"""The tokens of an answer as a client is told of them, with the text that they are in.

A token is shown once all of its text is: the halves of a character with that character, and what may begin a
stop string when it turns out to be none. A token whose text a stop string has cut off whole is never shown.
"""

from collections import deque

import msgspec

from frontend.token_scores import TokenScore


class ShownToken(msgspec.Struct, frozen=True):
    """A token of an answer that begins after `start` characters of it, and the likeliest in its place."""

    start: int
    own: TokenScore
    best: list[TokenScore]


class ShownTokens:
    """One answer's. Every token is pushed, with the text that it completes, before that text is shown.

    `num_before` characters stand before its first token.
    """

    def __init__(self, num_before: int = 0) -> None:
        self._waiting: deque[tuple[int, ShownToken]] = deque()
        self._num_pushed = num_before
        self._num_shown = num_before

    def push(self, own: TokenScore, best: list[TokenScore], num_chars: int, *, ends_within: bool) -> None:
        """The next token: with it the text is `num_chars` longer, and it `ends_within` the next character."""
        token = ShownToken(self._num_pushed, own, best)
        self._num_pushed += num_chars
        self._waiting.append((self._num_pushed + ends_within, token))

    def take(self, num_chars: int) -> list[ShownToken]:
        """The tokens whose text is shown with so many characters more."""
        self._num_shown += num_chars
        shown = []
        while self._waiting and self._waiting[0][0] <= self._num_shown:
            shown.append(self._waiting.popleft()[1])
        return shown

    def take_cut(self, num_chars: int) -> list[ShownToken]:
        """As `take`, of the last characters that are shown: the token that they end in belongs to them."""
        shown = self.take(num_chars)
        while self._waiting and self._waiting[0][1].start < self._num_shown:
            shown.append(self._waiting.popleft()[1])
        self._waiting.clear()
        return shown
