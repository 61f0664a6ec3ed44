"""Which drafts the decodes of a step get: as long as they let it give more tokens a second."""

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from services.planner.step_cost import StepCost
from workers.engine.drafter import MakeDrafter
from workers.engine.guesses import Guesses
from workers.engine.rates import Rates
from workers.engine.sequence import Sequence
from workers.engine.step import StepPlan

ChooseDrafts = Callable[[Ordered[Ordered[float]], int, StepCost], list[int]]
"""Of rows whose drafts are expected to give so many tokens each, in a step that computes so many tokens
without them: how many drafts each row gets."""


def choose_drafts(worths: Ordered[Ordered[float]], num_tokens: int, cost: StepCost) -> list[int]:
    """The drafts with which the step gives the most tokens a second, as far as its cost is known.

    The worths of a row fall. So the best are taken first, each as long as it adds more to the tokens, by
    share, than to the time.
    """
    chosen = [0] * len(worths)
    given, step_s = float(len(worths)), cost.step_s(num_tokens)
    offers = sorted(((worth, row) for row, each in enumerate(worths) for worth in each), reverse=True)
    for worth, row in offers:
        if worth * step_s <= given * cost.sequence_s:
            break
        chosen[row] += 1
        given += worth
        step_s += cost.sequence_s
    return chosen


@dataclass(frozen=True, slots=True)
class Drafting:
    """Who guesses, at most how many tokens a sequence and step, and who chooses of these."""

    make_drafter: MakeDrafter
    most_drafts: int
    choose: ChooseDrafts = choose_drafts


class Speculation:
    """For the steps of one engine. Which sequences have no drafts: see `_can_guess`."""

    def __init__(self, drafting: Drafting, rates: Rates) -> None:
        self._drafting = drafting
        self._rates = rates

    def draft(self, plan: StepPlan, room: int) -> list[tuple[int, list[int]]]:
        """Rows of `plan` with drafts for each, all together no more than `room`.

        Mutates: the guesses of the sequences, which it makes where there are none.
        """
        cost = self._rates.decode_cost
        if cost is None or room <= 0:
            return []
        rows, proposals, worths = [], [], []
        for place, sequence in enumerate(plan.sequences):
            if _can_guess(plan, place):
                rows.append(place)
                guesses = self._guesses(sequence)
                proposals.append(guesses.propose(sequence.tokens, self._most(sequence)))
                worths.append(guesses.worths(len(proposals[-1])))
        chosen = self._drafting.choose(worths, plan.num_tokens, cost)
        drafted = []
        for row, proposal, num_drafts in zip(rows, proposals, chosen, strict=True):
            drafts = proposal[: min(num_drafts, room)]
            room -= len(drafts)
            if drafts:
                drafted.append((row, drafts))
        return drafted

    def _guesses(self, sequence: Sequence) -> Guesses:
        if sequence.guesses is None:
            sequence.guesses = Guesses(self._drafting.make_drafter())
        return sequence.guesses

    def _most(self, sequence: Sequence) -> int:
        """One token is drawn beside the drafts, and none past the sequence's end."""
        return min(self._drafting.most_drafts, sequence.token_limit - len(sequence.tokens) - 1)


def _can_guess(plan: StepPlan, place: int) -> bool:
    """Only who decodes. What a grammar allows after a draft would have to be found out one draft after the
    other, and be taken back for those that are wrong: such a sequence goes on token by token."""
    row, sequence = plan.rows[place], plan.sequences[place]
    is_decode = row.sample is not None and len(row.tokens) == 1 and row.scores is None
    return is_decode and sequence.spec.grammar is None
