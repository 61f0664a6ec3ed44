"""Drafters for tests: one that knows what the witness says next, one that lies, and a mixture."""

import random
from collections.abc import Callable, Sequence

from services.planner.step_cost import StepCost
from tests.workers.engine.witness_runner import VOCAB_SIZE, fingerprint, sample
from workers.engine.drafter import Drafter
from workers.engine.speculation import Drafting


def all_of_them(worths: Sequence[Sequence[float]], num_tokens: int, cost: StepCost) -> list[int]:
    """A choice that takes every draft there is."""
    return [len(each) for each in worths]


class Oracle:
    """Knows what the witness says next, as long as no ban comes between."""

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        mark = 0
        for token in tokens:
            mark = fingerprint(mark, token)
        guess: list[int] = []
        for _ in range(most):
            guess.append(sample(mark))
            mark = fingerprint(mark, guess[-1])
        return guess


class Liar:
    """Knows what it will not say: the first guess is wrong, whatever is banned."""

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        return [VOCAB_SIZE] * most


class Dreamer:
    """Right for a while, then wrong, never alike; sometimes without an idea."""

    def __init__(self) -> None:
        self._random = random.Random(5)

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        guess = Oracle().propose(tokens, self._random.randint(0, most))
        return [
            token if self._random.random() < 0.7 else self._random.randrange(VOCAB_SIZE) for token in guess
        ]


def drafting_of(make_drafter: Callable[[], Drafter], most_drafts: int = 3) -> Drafting:
    """All that they guess is tried."""
    return Drafting(make_drafter, most_drafts, all_of_them)


DRAFTERS: dict[str, Callable[[], Drafter]] = {"oracle": Oracle, "liar": Liar, "dreamer": Dreamer}
