"""What a computed step means for its sequences: new tokens, full blocks, ends."""

import msgspec

from proto.errors import InternalFault, to_fault
from workers.engine.block_ledger import BlockLedger
from workers.engine.runner import SampledToken
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.step import SequenceProgress, StepPlan

NOT_FINITE = to_fault(InternalFault(reason="the model's logits were not finite"))
STEP_FAILED = to_fault(InternalFault(reason="the step failed"))


class Outcome(msgspec.Struct, eq=False):
    """What to tell the listener, which sequences have ended, and which PREFILLs are complete."""

    events: list[SequenceProgress] = []
    ended: list[Sequence] = []
    complete: list[Sequence] = []


def take_in(plan: StepPlan, sampled: list[SampledToken], ledger: BlockLedger) -> Outcome:
    """The outcome of a step that was computed.

    Mutates: the sequences of `plan`; names the blocks that became full in the cache of `ledger`.
    """
    outcome = _outcome_of_held(plan)
    drawn = {token.key: token for token in sampled}
    for row, sequence in zip(plan.rows, plan.sequences, strict=True):
        sequence.is_in_step = False
        sequence.num_computed += len(row.tokens)
        token = drawn[row.key] if row.sample is not None else None
        if token is not None and token.failed:
            ledger.disown(sequence)
            _end(sequence, SequenceProgress(sequence.name, fault=NOT_FINITE), outcome)
            continue
        ledger.store(sequence)
        if sequence.is_cancelled:
            outcome.ended.append(sequence)
        elif token is not None:
            _append(sequence, token.token, outcome)
        elif sequence.is_complete:
            outcome.complete.append(sequence)
            outcome.events.append(SequenceProgress(sequence.name, is_held=True))
    return outcome


def fail(plan: StepPlan) -> Outcome:
    """The outcome of a step whose computation raised: its sequences end, the others never notice."""
    outcome = _outcome_of_held(plan)
    for sequence in plan.sequences:
        _end(sequence, SequenceProgress(sequence.name, fault=STEP_FAILED), outcome)
    return outcome


def _outcome_of_held(plan: StepPlan) -> Outcome:
    held = [each for each in plan.held if each.state is SequenceState.HELD]  # not those cancelled since
    return Outcome(events=[SequenceProgress(each.name, is_held=True) for each in held])


def _append(sequence: Sequence, token: int, outcome: Outcome) -> None:
    finish = sequence.append(token)
    progress = SequenceProgress(sequence.name, [token], finish)
    if finish is None:
        outcome.events.append(progress)
    else:
        _end(sequence, progress, outcome)


def _end(sequence: Sequence, progress: SequenceProgress, outcome: Outcome) -> None:
    outcome.ended.append(sequence)
    if not sequence.is_cancelled:
        outcome.events.append(progress)
