"""The engine's books: every sequence, who has which blocks, and what is computed next. No lock, no thread."""

from collections import Counter
from collections.abc import Sequence as Ordered

from proto.errors import GrantRefused, InternalFault
from workers.engine.admission import check_growth
from workers.engine.block_ledger import BlockLedger
from workers.engine.engine_load import EngineLoad
from workers.engine.engine_settings import EngineSettings
from workers.engine.freezer import Freezer
from workers.engine.hash_chain import HashChain
from workers.engine.outcome import Outcome
from workers.engine.rates import Rates
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence, SequenceKv, SequenceSpec, SequenceState
from workers.engine.speculation import Speculation
from workers.engine.step import SequenceProgress, StepPlan


class Books:
    """The verbs are the engine's, which says what they mean; it calls them one at a time.

    `context_tokens` is the most that a sequence may have.
    """

    def __init__(self, settings: EngineSettings, rates: Rates, speculation: Speculation | None) -> None:
        self.context_tokens = min(settings.context_tokens, settings.num_blocks * settings.block_size)
        self.sequences: dict[str, Sequence] = {}
        self.ledger = BlockLedger(settings.num_blocks, settings.block_size)
        self._settings = settings
        self._rates = rates
        self._scheduler = Scheduler(settings, self.ledger, speculation)
        self._freezer = Freezer(self._scheduler)
        self._running_plan: StepPlan | None = None
        self._num_arrivals = 0
        self._num_steps = 0
        self._computed_tokens = 0
        self._drafted_tokens = 0
        self._accepted_tokens = 0
        self._prompt_tokens = 0

    @property
    def num_not_running(self) -> int:
        return len(self.sequences) - len(self._scheduler.running)

    @property
    def waiting_tokens(self) -> int:
        return self._scheduler.count_waiting_tokens()

    # Sequences come, and get their KV.

    def new_sequence(self, spec: SequenceSpec) -> Sequence:
        tokens = list(spec.tokens)
        return Sequence(
            spec=spec,
            tokens=tokens,
            chain=HashChain(tokens, spec.salt, self._settings.block_size, spec.hashes),
            rank=(spec.priority, 0),
            token_limit=min(spec.num_prompt + spec.max_tokens, self.context_tokens),
        )

    def add(self, sequence: Sequence, *, await_kv: bool) -> int:
        self._num_arrivals += 1
        sequence.rank = (sequence.spec.priority, self._num_arrivals)
        self.sequences[sequence.name] = sequence
        self._prompt_tokens += len(sequence.spec.tokens)
        self._scheduler.claim(sequence)
        if not await_kv:
            self._scheduler.enqueue(sequence)
        return sequence.num_computed

    def set_aside(self, name: str, end: int) -> list[int]:
        found = self._awaiting(name)
        if found is None:
            raise GrantRefused(job=name, reason="it awaits no KV")
        if not found.num_computed < end <= found.max_cached_tokens:
            raise GrantRefused(job=name, reason=f"it has no use for tokens up to {end}")
        if found.num_computed % self._settings.block_size:
            raise GrantRefused(job=name, reason="its KV ends within a block")
        num_blocks = self.ledger.blocks_for(end) - len(found.blocks)
        if not self._scheduler.can_spare(num_blocks):
            raise GrantRefused(job=name, reason="no blocks to spare")
        return self.ledger.pool.set_aside(num_blocks)

    def lay(self, name: str, blocks: list[int], end: int) -> bool:
        found = self._awaiting(name)
        if found is None:
            return False
        num_blocks = self.ledger.blocks_for(end) - len(found.blocks)
        if not found.num_computed < end <= found.max_cached_tokens or len(blocks) != num_blocks:
            raise InternalFault(reason=f"{len(blocks)} blocks do not hold {name} up to {end}")
        self.ledger.land(found, blocks, end)
        found.is_landed = True
        return True

    def extend(self, name: str, tokens: list[int]) -> bool:
        found = self._awaiting(name)
        if found is None:
            return False
        check_growth(found, tokens, self._settings)
        found.tokens.extend(tokens)
        return True

    def recall(self, name: str) -> bool:
        found = self._awaiting(name)
        if found is not None:
            self._scheduler.enqueue(found)
        return found is not None

    def _awaiting(self, name: str) -> Sequence | None:
        found = self.sequences.get(name)
        return found if found is not None and found.state is SequenceState.AWAITING else None

    # They stop, and leave.

    def cancel(self, name: str) -> bool:
        found = self._living(name)
        if found is None:
            return False
        found.is_cancelled = True
        if found.is_in_step:
            self._reconsider_step()
        else:
            self.end(found)
        return True

    def freeze(self, name: str) -> bool:
        found = self._living(name)
        if found is None:
            return False
        self._freezer.ask(found)
        self._reconsider_step()
        return True

    def freeze_computed(self, name: str) -> bool:
        found = self.sequences.get(name)
        is_computed = found is not None and found.state in (SequenceState.WAITING, SequenceState.RUNNING)
        return is_computed and self.freeze(name)

    def thaw(self, name: str) -> bool:
        found = self.sequences.get(name)
        has_thawed = found is not None and self._freezer.thaw(found)
        self._reconsider_step()
        return has_thawed

    def release(self, name: str) -> bool:
        found = self.sequences.get(name)
        if found is None or found.state is not SequenceState.HELD:
            return False
        self.end(found)
        return True

    def end(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self.ledger.strip(sequence)
        sequence.state = SequenceState.ENDED
        del self.sequences[sequence.name]

    def _living(self, name: str) -> Sequence | None:
        found = self.sequences.get(name)
        return found if found is not None and not found.is_cancelled else None

    def _reconsider_step(self) -> None:
        """A step that would go on for nobody's sake is abandoned. What is to be frozen gets its token first
        where it decodes: it will wait for its next one as it is, and the step is soon over."""
        plan = self._running_plan
        if plan is not None and plan.rows:
            asked = self._freezer.asked if plan.prefill_tokens else set()
            plan.is_wanted = not all(each.is_cancelled or each.name in asked for each in plan.sequences)

    # Others read their blocks.

    def pin_sequence(self, name: str, first: int) -> SequenceKv | None:
        found = self._living(name)
        if found is None:
            return None
        if found.state in (SequenceState.WAITING, SequenceState.FROZEN):
            self._scheduler.claim(found)
        blocks = self.ledger.settled(found)[first:]
        self.ledger.pool.share(blocks)
        return SequenceKv(list(found.tokens), found.num_computed, blocks)

    def pin(self, hashes: Ordered[bytes]) -> list[int]:
        blocks = self.ledger.cache.match(hashes)
        self.ledger.pool.share(blocks)
        return blocks

    # Steps.

    def freeze_asked(self) -> list[SequenceProgress]:
        """Between two steps: those that are frozen now."""
        return self._freezer.freeze_asked()

    def plan_step(self) -> StepPlan:
        self._running_plan = self._scheduler.plan()
        return self._running_plan

    def settle(self, outcome: Outcome) -> None:
        """The step that was planned is over, and this is what it meant for its sequences."""
        self._running_plan = None
        self._num_steps += 1
        self._computed_tokens += outcome.computed_tokens
        self._drafted_tokens += outcome.num_drafts
        self._accepted_tokens += outcome.num_accepted
        for sequence in outcome.complete:
            self._scheduler.remove(sequence)
            sequence.state = SequenceState.HELD
        for sequence in outcome.ended:
            self.end(sequence)

    def load(self) -> EngineLoad:
        states = Counter(sequence.state for sequence in self.sequences.values())
        pool = self.ledger.pool
        return EngineLoad(
            num_running=states[SequenceState.RUNNING],
            num_waiting=states[SequenceState.WAITING],
            num_awaiting=states[SequenceState.AWAITING],
            num_held=states[SequenceState.HELD],
            num_frozen=states[SequenceState.FROZEN],
            waiting_tokens=self._scheduler.count_waiting_tokens(),
            job_tokens=self._scheduler.count_job_tokens(),
            total_blocks=pool.num_blocks,
            free_blocks=pool.num_available,
            cached_blocks=pool.num_idle,
            active_blocks=pool.num_active,
            set_aside_blocks=pool.num_aside,
            prefill_rate=self._rates.prefill_rate,
            decode_step_s=self._rates.decode_step_s,
            hit_tokens=self._scheduler.hit_tokens,
            prompt_tokens=self._prompt_tokens,
            num_steps=self._num_steps,
            computed_tokens=self._computed_tokens,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
            num_preemptions=self._scheduler.num_preemptions,
        )
