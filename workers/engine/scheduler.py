"""Which tokens the next step computes: decodes, prefills, whom it lets in, drafts; and who must yield.

Continuous batching with chunked prefill. All sequences that wait or run are ranked by (priority, arrival).
Memory decides in the order of rank: whoever lacks a block takes those of the lowest ranked below it, which
begins again later with the tokens it has. The highest ranked can take from all others and yields to none, so
something always proceeds, unless the blocks are lent out of the engine's hands: set aside, pinned, held.
"""

from bisect import insort

from workers.engine.block_ledger import BlockLedger
from workers.engine.engine_settings import EngineSettings
from workers.engine.sequence import Sequence, SequenceKind, SequenceState
from workers.engine.speculation import Speculation
from workers.engine.step import StepPlan

MAX_SCORED_TOKENS = 128
"""Of one step: each of them has logits for the whole vocabulary, all of which are in memory at once."""


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


def _admission_rank(sequence: Sequence) -> tuple[int, bool, int]:
    return sequence.admission_rank


class Scheduler:
    """The sequences that wait and those that run. `running` is in order of rank, `waiting` of admission.

    Without `speculation` there are no drafts.
    """

    def __init__(
        self, settings: EngineSettings, ledger: BlockLedger, speculation: Speculation | None
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._speculation = speculation
        self._watermark_blocks = int(settings.watermark_share * settings.num_blocks)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.hit_tokens = 0
        self.num_preemptions = 0

    def enqueue(self, sequence: Sequence) -> None:
        """Lets `sequence` wait for its turn, with the blocks it has."""
        sequence.state = SequenceState.WAITING
        insort(self.waiting, sequence, key=_admission_rank)

    def remove(self, sequence: Sequence) -> None:
        """Forgets `sequence` if it waits or runs; its blocks stay its own."""
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)

    def can_spare(self, num_blocks: int) -> bool:
        """Whether `num_blocks` can go to somebody new and leave those that run a block each to grow into."""
        reserve = max(self._watermark_blocks, self._num_growing()) if self.running else 0
        return self._ledger.pool.num_available >= num_blocks + reserve

    def count_waiting_tokens(self) -> int:
        """Tokens to be prefilled: of all that wait, and of those that run and do not decode yet."""
        prefills = [each.num_pending for each in self.running if each.num_pending > 1]
        return sum(prefills) + sum(each.num_pending for each in self.waiting)

    def count_job_tokens(self) -> int:
        """Those of the waiting tokens that are to be prefilled for another worker."""
        return sum(
            each.num_pending
            for each in (*self.running, *self.waiting)
            if each.spec.kind is SequenceKind.PREFILL
        )

    def claim(self, sequence: Sequence) -> None:
        """Gives `sequence` the cached blocks that follow its own, and counts them as hits the first time."""
        self._claim(sequence, self._ledger.find_claim(sequence))

    def plan(self) -> StepPlan:
        """The next step; empty when nothing can proceed.

        Mutates: gives blocks to the sequences of the step, and takes them from those it preempts.
        """
        plan = StepPlan()
        self._plan_decodes(plan)
        self._plan_prefills(plan)
        self._admit(plan)
        if plan.is_empty and self.waiting:
            self._admit_by_force(plan)
        if self._speculation is not None and plan.num_decodes:
            self._add_drafts(plan, self._speculation)
        return plan

    def _plan_decodes(self, plan: StepPlan) -> None:
        for sequence in tuple(self.running):  # a victim is ranked below its taker, and so comes after it here
            if (
                sequence.state is SequenceState.RUNNING
                and sequence.num_pending == 1
                and self._has_room(sequence)
            ):
                plan.add(sequence, 1)

    def _plan_prefills(self, plan: StepPlan) -> None:
        for sequence in self.running:
            if sequence.num_pending > 1:
                self._add_chunk(sequence, plan)

    def _admit(self, plan: StepPlan) -> None:
        """In order; but who waits for its turn to be scored, of which few are at once, holds nobody back."""
        place = 0
        while place < len(self.waiting) and len(self.running) < self._settings.max_sequences:
            sequence = self.waiting[place]
            claim = self._ledger.find_claim(sequence)
            cost = self._ledger.admission_cost(sequence, claim)
            if cost and not self.can_spare(cost):
                return
            if self._begin(sequence, claim, plan):
                continue
            if not sequence.wants_scores:
                return
            place += 1

    def _admit_by_force(self, plan: StepPlan) -> None:
        """Nothing runs: the highest ranked of the waiting takes what it needs from all below it."""
        sequence = min(self.waiting, key=_rank)
        while True:
            claim = self._ledger.find_claim(sequence)
            cost = self._ledger.admission_cost(sequence, claim)
            is_full = len(self.running) >= self._settings.max_sequences
            if cost <= self._ledger.pool.num_available and not is_full:
                self._begin(sequence, claim, plan)
                return
            if not self._preempt_below(sequence):
                return

    def _begin(self, sequence: Sequence, claim: list[int], plan: StepPlan) -> bool:
        """Starts a waiting sequence, unless the step has no tokens left for it."""
        pending = sequence.num_pending - len(claim) * self._settings.block_size
        if pending and not self._chunk(sequence, pending, plan):
            return False
        self.waiting.remove(sequence)
        self._claim(sequence, claim)
        self._ledger.grow(sequence, len(sequence.tokens))
        if not pending:
            sequence.state = SequenceState.HELD
            plan.held.append(sequence)
            return True
        sequence.state = SequenceState.RUNNING
        insort(self.running, sequence, key=_rank)
        self._add_chunk(sequence, plan)
        return True

    def _add_chunk(self, sequence: Sequence, plan: StepPlan) -> None:
        num_tokens = self._chunk(sequence, sequence.num_pending, plan)
        if num_tokens:
            plan.add(sequence, num_tokens)

    def _chunk(self, sequence: Sequence, pending: int, plan: StepPlan) -> int:
        """How many of `pending` tokens this step takes: all, or up to a block border, or none."""
        start, block_size = sequence.num_computed, self._settings.block_size
        budget = self._settings.most_tokens(plan.num_decodes) - plan.num_tokens
        if sequence.wants_scores:
            budget = min(budget, max(MAX_SCORED_TOKENS, block_size) - plan.scored_tokens)
        if pending <= budget:
            return pending
        return max(0, (start + budget) // block_size * block_size - start)

    def _add_drafts(self, plan: StepPlan, speculation: Speculation) -> None:
        """They get what is left: of the step's tokens, and of blocks that nobody else needs soon."""
        room = self._settings.most_tokens(plan.num_decodes) - plan.num_tokens
        for place, drafts in speculation.draft(plan, room):
            sequence = plan.sequences[place]
            end = sequence.num_computed + 1 + len(drafts)
            if not self.can_spare(self._ledger.blocks_for(end) - len(sequence.blocks)):
                end = min(end, len(sequence.blocks) * self._settings.block_size)
            self._ledger.grow(sequence, end)
            plan.draft(place, drafts[: end - sequence.num_computed - 1])

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether the next token has a place; takes a block from lower ranked sequences if need be."""
        if sequence.num_computed < len(sequence.blocks) * self._settings.block_size:
            return True
        while not self._ledger.pool.num_available:
            if not self._preempt_below(sequence):
                return False
        self._ledger.grow(sequence, len(sequence.tokens))
        return True

    def _preempt_below(self, taker: Sequence) -> bool:
        """Preempts the lowest ranked sequence below `taker` that owns blocks, of the waiting ones first.

        One that waits loses a claim or a landing; one that runs loses what it has computed.
        """
        waiting = [each for each in self.waiting if each.blocks and each.rank > taker.rank]
        if waiting:
            self._preempt(max(waiting, key=_rank))
            return True
        if self.running and self.running[-1].rank > taker.rank:
            self._preempt(self.running[-1])
            return True
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self.remove(sequence)
        self._ledger.strip(sequence)
        self.num_preemptions += sequence.state is SequenceState.RUNNING
        sequence.is_landed = False
        sequence.is_preempted = True
        self.enqueue(sequence)

    def _claim(self, sequence: Sequence, claim: list[int]) -> None:
        self._ledger.claim(sequence, claim)
        if not sequence.is_preempted:
            self.hit_tokens += len(claim) * self._settings.block_size

    def _num_growing(self) -> int:
        return sum(sequence.spec.kind is SequenceKind.GENERATE for sequence in self.running)
