"""What a computed step means for its sequences: new tokens, full blocks, ends."""

import msgspec

from proto.errors import Fault, InternalFault, to_fault
from workers.engine.block_ledger import BlockLedger
from workers.engine.runner import RowResult, ScheduledSequence
from workers.engine.sequence import Sequence, SequenceState
from workers.engine.step import SequenceProgress, StepPlan

NOT_FINITE = to_fault(InternalFault(reason="the model's logits were not finite"))
STEP_FAILED = to_fault(InternalFault(reason="the step failed"))


class Outcome(msgspec.Struct, eq=False):
    """What to tell the listener, which sequences have ended, which PREFILLs are complete, and how many tokens
    were computed; of these `num_drafts` were guesses, and `num_accepted` of them right."""

    events: list[SequenceProgress] = []
    ended: list[Sequence] = []
    complete: list[Sequence] = []
    computed_tokens: int = 0
    num_drafts: int = 0
    num_accepted: int = 0


def take_in(results: list[RowResult], plan: StepPlan, ledger: BlockLedger) -> Outcome:
    """The outcome of a step that was computed.

    Mutates: the sequences of `plan`; names the blocks that became full in the cache of `ledger`.
    """
    outcome = _outcome_of_held(plan)
    by_key = {result.key: result for result in results}
    for row, sequence in zip(plan.rows, plan.sequences, strict=True):
        sequence.is_in_step = False
        sequence.num_computed += row.num_given
        outcome.computed_tokens += len(row.tokens)
        result = by_key.get(row.key)
        if result is not None and result.failed:
            ledger.disown(sequence)
            _end(sequence, SequenceProgress(sequence.name, fault=_cause(sequence)), outcome)
            continue
        if sequence.is_cancelled:
            outcome.ended.append(sequence)
        elif result is not None:
            _take_result(sequence, row, result, outcome)
        elif sequence.is_complete:
            outcome.complete.append(sequence)
            outcome.events.append(SequenceProgress(sequence.name, is_held=True))
        _settle_blocks(sequence, row, ledger)
    return outcome


def _settle_blocks(sequence: Sequence, row: ScheduledSequence, ledger: BlockLedger) -> None:
    """Its blocks up to the last computed token are its own, those that are full everybody's.

    What lies beyond is the KV of drafts that were wrong: no hash is ever of it, and the next step writes
    there.
    """
    ledger.store(sequence)
    if row.num_drafts:
        ledger.trim(sequence)


def _cause(sequence: Sequence) -> Fault:
    """Why no token could be drawn for it."""
    grammar = sequence.spec.grammar
    return NOT_FINITE if grammar is None else grammar.fault or NOT_FINITE


def abandon(plan: StepPlan, ledger: BlockLedger) -> Outcome:
    """The outcome of a step that was left in its midst: its sequences stand where they stood before it.

    Mutates: the sequences of `plan`.
    """
    outcome = _outcome_of_held(plan)
    for row, sequence in zip(plan.rows, plan.sequences, strict=True):
        sequence.is_in_step = False
        if row.num_drafts:
            ledger.trim(sequence)
        if sequence.is_cancelled:
            outcome.ended.append(sequence)
    return outcome


def fail(plan: StepPlan, _: BlockLedger) -> Outcome:
    """The outcome of a step whose computation raised: its sequences end, the others never notice."""
    outcome = _outcome_of_held(plan)
    for sequence in plan.sequences:
        _end(sequence, SequenceProgress(sequence.name, fault=STEP_FAILED), outcome)
    return outcome


def _outcome_of_held(plan: StepPlan) -> Outcome:
    held = [each for each in plan.held if each.state is SequenceState.HELD]  # not those cancelled since
    return Outcome(events=[SequenceProgress(each.name, is_held=True) for each in held])


def _take_result(sequence: Sequence, row: ScheduledSequence, result: RowResult, outcome: Outcome) -> None:
    if row.scores is not None:
        sequence.note_scores(row.start, result.prompt_logprobs)
    if not result.tokens:
        return
    finish, num_taken = None, 0
    while finish is None and num_taken < len(result.tokens):
        finish = sequence.append(result.tokens[num_taken])
        num_taken += 1
    _note_drafts(sequence, row, num_taken - 1, outcome)
    progress = SequenceProgress(
        sequence.name,
        result.tokens[:num_taken],
        finish,
        logprobs=result.logprobs[: len(result.logprobs) // len(result.tokens) * num_taken],
        prompt_logprobs=sequence.take_prompt_logprobs(),
    )
    if finish is None:
        outcome.events.append(progress)
    else:
        _end(sequence, progress, outcome)


def _note_drafts(sequence: Sequence, row: ScheduledSequence, num_accepted: int, outcome: Outcome) -> None:
    """So many of the row's drafts are now tokens of the sequence, and their KV is computed."""
    sequence.num_computed += num_accepted
    outcome.num_drafts += row.num_drafts
    outcome.num_accepted += num_accepted
    if sequence.guesses is not None:
        sequence.guesses.note(row.num_drafts, num_accepted)


def _end(sequence: Sequence, progress: SequenceProgress, outcome: Outcome) -> None:
    outcome.ended.append(sequence)
    if not sequence.is_cancelled:
        outcome.events.append(progress)
