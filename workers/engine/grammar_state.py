"""Where one sequence is in its grammar: a function of the tokens that were generated for it, and of no more.

So wherever it goes on, with whatever tokens it brings, it is in the same place.
"""

import threading
from collections.abc import Sequence

from proto.constraints import Constraint
from proto.errors import Fault, InternalFault, KvmeshError, to_fault
from services.grammars.vocabulary import Matcher

COMPILE_LIMIT_S = 60.0


class GrammarState:
    """Made with the sequence; its grammar comes later, by `load` or `refuse`, from any thread.

    What follows the tokens is for one thread. `fault` is why the sequence cannot go on.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.fault: Fault | None = None
        self._matcher: Matcher | None = None
        self._num_taken = 0
        self._is_settled = threading.Event()

    def load(self, matcher: Matcher) -> None:
        """`matcher` is at the beginning, and this sequence's own."""
        self._matcher = matcher
        self._is_settled.set()

    def refuse(self, error: KvmeshError) -> None:
        """There will be no grammar."""
        self.fault = to_fault(error)
        self._is_settled.set()

    def follow(self, tokens: Sequence[int], num_prompt: int) -> Matcher | None:
        """The matcher at the end of `tokens`, less the first `num_prompt`. None: `fault` says why.

        A sequence is computed once its grammar is there, unless it was on its way to another worker and came
        back: such a one is waited for.
        """
        if not self._is_settled.wait(COMPILE_LIMIT_S):
            self.refuse(InternalFault(reason=f"no grammar after {COMPILE_LIMIT_S} s"))
        if self.fault is not None or self._matcher is None:
            return None
        new = tokens[num_prompt + self._num_taken :]
        self._num_taken += len(new)
        try:
            self._matcher.advance(list(new))
        except KvmeshError as error:
            self.refuse(error)
            return None
        return self._matcher
