"""Who guesses how a sequence goes on; torch-free."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

SpeculativeName = Literal["off", "ngram"]


class Drafter(Protocol):
    """Guesses for one sequence, with which it is made. A wrong guess costs time and changes no token.

    It is asked while a step is planned, and must not compute then. One whose guesses a model makes (a smaller
    one, or heads of the same) has them from the end of the last step, in which that model ran.
    """

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most `most` tokens that may follow `tokens`; none when it has no idea.

        `tokens` are all of the sequence, and begin with those of every call before.
        """
        ...


MakeDrafter = Callable[[], Drafter]
