"""How often each token of a sequence came: what penalties depend on, kept up with the sequence as it grows.

It is a function of the tokens alone, so nothing of it travels, and whoever has the tokens can make it anew.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counted:
    """Distinct tokens, int64, and how often each was generated, float32, side by side."""

    tokens: "array[int]"
    counts: "array[float]"


class TokenCounts:
    """The distinct tokens that a sequence has, and how often each was generated.

    Args: `seen`: the prompt, where its tokens count as seen, else nothing; `num_prompt` its length.

    `tokens` are int64 and `counts` float32, side by side, to be read as memory.
    """

    def __init__(self, seen: Sequence[int], num_prompt: int) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(seen))}
        self.tokens = array("q", self._places)
        self.counts = array("f", bytes(4 * len(self._places)))
        self._num_counted = num_prompt

    def catch_up(self, tokens: Sequence[int]) -> None:
        """`tokens` are all of the sequence: counts those that were generated since the last time."""
        for token in tokens[self._num_counted :]:
            self.counts[self._place_of(token)] += 1.0
        self._num_counted = len(tokens)

    def after(self, more: Sequence[int]) -> Counted:
        """As it would be if `more` had been generated, too."""
        if not more:
            return Counted(self.tokens, self.counts)
        found = Counted(self.tokens[:], self.counts[:])
        new: dict[int, int] = {}
        for token in more:
            place = self._places.get(token)
            if place is None:
                place = new.setdefault(token, len(found.tokens))
            if place == len(found.tokens):
                found.tokens.append(token)
                found.counts.append(0.0)
            found.counts[place] += 1.0
        return found

    def _place_of(self, token: int) -> int:
        place = self._places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.tokens.append(token)
            self.counts.append(0.0)
        return place
