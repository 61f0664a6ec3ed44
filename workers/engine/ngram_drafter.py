"""Prompt lookup: what followed the last few tokens when they came before.

```
 … t u v w x … … … t u v      the last tokens stand earlier in the text:
         ▲                    what came after them there, w x …, is the guess
         candidates are chained by their last `min_tokens` tokens, the latest first
```
Source: Saxena, "Prompt Lookup Decoding" (2023); the chains are those of LZ77 as zlib has them.
"""

from collections.abc import Sequence

NUM_CANDIDATES = 8
"""Earlier places that are compared, the latest first: what a guess costs does not grow with the text."""


class NgramDrafter:
    """A `Drafter`. Each token is indexed once: O(new tokens) a call.

    Of the places that the last `min_tokens` tokens stand at too, that is taken before which most tokens are
    the same, up to `max_tokens`; of equals the latest.
    """

    def __init__(self, min_tokens: int, max_tokens: int) -> None:
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[int] = [0] * min_tokens

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """See `Drafter`. A guess that comes to the end of the text goes on with itself, as a text that goes
        round does."""
        self._index(tokens)
        start = self._find(tokens)
        if not start:
            return []
        guess: list[int] = []
        for place in range(start, start + most):
            guess.append(tokens[place] if place < len(tokens) else guess[place - len(tokens)])
        return guess

    def _index(self, tokens: Sequence[int]) -> None:
        """`_earlier[i]`: the last place before i that follows the same tokens as place i does; 0: none."""
        latest, earlier, size = self._latest, self._earlier, self._min_tokens
        for place in range(len(earlier), len(tokens)):
            key = tuple(tokens[place - size : place])
            earlier.append(latest.get(key, 0))
            latest[key] = place

    def _find(self, tokens: Sequence[int]) -> int:
        """The place whose token is the first guess; 0: none."""
        place = self._latest.get(tuple(tokens[-self._min_tokens :]), 0)
        best, best_length = 0, 0
        for _ in range(NUM_CANDIDATES):
            if not place:
                break
            length = self._common(tokens, place)
            if length > best_length:
                best, best_length = place, length
            if length == self._max_tokens:
                break
            place = self._earlier[place]
        return best

    def _common(self, tokens: Sequence[int], place: int) -> int:
        """How many tokens before `place` are the last ones of all, as far as it matters."""
        length = self._min_tokens
        while length < min(self._max_tokens, place) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        return length
