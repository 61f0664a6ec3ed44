"""Which tokens the rows of a step may draw, found out while the model computes."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import msgspec

from services.grammars.vocabulary import Masks, Matcher
from workers.engine.grammar_state import GrammarState
from workers.engine.runner import ScheduledSequence
from workers.engine.sequence import Sequence
from workers.engine.step import StepPlan

MAX_THREADS = 4
NOTHING = b""


class _Draw(msgspec.Struct, frozen=True):
    """A row that draws a token of a sequence that has a grammar."""

    row: ScheduledSequence
    sequence: Sequence
    grammar: GrammarState

    def follow(self) -> Matcher | None:
        return self.grammar.follow(self.sequence.tokens, self.sequence.spec.num_prompt)


class GrammarMasks:
    """For the steps of one engine. Its threads begin with the first grammar."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._masks: Masks | None = None

    @contextmanager
    def filling(self, plan: StepPlan) -> Iterator[Future[None] | None]:
        """Once the future is done each row has its `allowed`; None: all are free.

        At the end of the body, however it ends, nothing of `plan` is touched any more.
        """
        draws = _draws_of(plan)
        if not draws:
            yield None
            return
        filled = self._thread.submit(self._fill, draws)
        try:
            yield filled
        finally:
            wait([filled])

    def _fill(self, draws: list[_Draw]) -> None:
        """A row may draw nothing where its sequence cannot go on, and `fault` of its grammar says why."""
        if self._masks is None:
            self._masks = Masks(min(MAX_THREADS, os.cpu_count() or 1))
        for draw in draws:
            draw.row.allowed = NOTHING
        found = [(draw, draw.follow()) for draw in draws]
        followed = [(draw, matcher) for draw, matcher in found if matcher is not None]
        masks = self._masks.fill([matcher for _, matcher in followed])
        for (draw, matcher), mask in zip(followed, masks, strict=True):
            if matcher.is_accepting:
                _allow(draw.sequence.spec.stop_tokens, mask)
            if mask.count(0) < len(mask):
                draw.row.allowed = bytes(mask)
            else:
                draw.grammar.refuse(matcher.fault())


def _draws_of(plan: StepPlan) -> list[_Draw]:
    return [
        _Draw(row, sequence, sequence.spec.grammar)
        for row, sequence in zip(plan.rows, plan.sequences, strict=True)
        if row.sample is not None and sequence.spec.grammar is not None
    ]


def _allow(tokens: Iterable[int], mask: bytearray) -> None:
    """
    Mutates: `mask`.
    """
    for token in tokens:
        mask[token // 8] |= 1 << token % 8
