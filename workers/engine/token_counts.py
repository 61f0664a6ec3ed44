"""How often each token of a sequence came: what penalties depend on, kept up with the sequence as it grows.

It is a function of the tokens alone, so nothing of it travels, and whoever has the tokens can make it anew.
"""

from array import array
from collections.abc import Sequence


class TokenCounts:
    """The distinct tokens of a sequence from place `first` on, and how often each was generated.

    Args: `first`: 0 where the prompt's tokens count as seen, else where the generated ones begin.
        `num_prompt`: tokens before this place are seen, and not counted as generated.

    `tokens` are int64 and `counts` float32, side by side, to be read as memory.
    """

    def __init__(self, first: int, num_prompt: int) -> None:
        self.tokens = array("q")
        self.counts = array("f")
        self._places: dict[int, int] = {}
        self._num_prompt = num_prompt
        self._num_seen = first

    def catch_up(self, tokens: Sequence[int]) -> None:
        """`tokens` are all of the sequence: takes in those that have come since the last time."""
        for position in range(self._num_seen, len(tokens)):
            place = self._place_of(tokens[position])
            if position >= self._num_prompt:
                self.counts[place] += 1.0
        self._num_seen = len(tokens)

    def _place_of(self, token: int) -> int:
        place = self._places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.tokens.append(token)
            self.counts.append(0.0)
        return place
