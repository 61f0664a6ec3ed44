"""What one sequence's drafter guesses, and how often that came true."""

from collections.abc import Sequence

from workers.engine.drafter import Drafter

FIRST_RATE = 0.75
"""What is believed of a drafter that was not tried yet."""
WEIGHT = 0.25
"""Of the newest draft against all before it: a text begins and ends to repeat itself within a few tokens."""
PROBE_STEPS = 32
"""After so many without a draft a drafter that is not believed may show, with one, that it is right again."""


class Guesses:
    """`rate`: the share of drafts that came true of those that came to be tried, the newest counting most."""

    def __init__(self, drafter: Drafter) -> None:
        self.rate = FIRST_RATE
        self._drafter = drafter
        self._num_plain_steps = 0

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        return self._drafter.propose(tokens, most)

    def worths(self, num_drafts: int) -> list[float]:
        """The tokens that each of so many drafts may be expected to give: it and all before must be right."""
        worths = [self.rate ** (place + 1) for place in range(num_drafts)]
        if worths and self._num_plain_steps >= PROBE_STEPS:
            worths[0] = 1.0
        return worths

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """A step had so many drafts, and the first so many of them were right."""
        if not num_drafts:
            self._num_plain_steps += 1
            return
        self._num_plain_steps = 0
        for _ in range(num_accepted):
            self.rate += WEIGHT * (1.0 - self.rate)
        if num_accepted < num_drafts:
            self.rate -= WEIGHT * self.rate
