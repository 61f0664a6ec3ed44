"""The engine: sequences in, tokens out, and every block accounted for.

One object owns sequences, pool, prefix cache and scheduler behind one lock. The lock is held while a step
is planned, while its outcome is taken in, and in the short verbs, never during the computation; so an event
loop may call the verbs as they are. The steps belong to one driver: a thread (`engine_thread`), the only
caller of `step_once` and `wait_work`, or who takes the two halves of a step itself, `begin_step` and
`end_step`, once `on_change` has said that there is something to do. Here is no asyncio and no torch.
"""

import threading
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from proto.errors import (
    Fault,
    GrantRefused,
    InternalFault,
    InvalidRequest,
    KvmeshError,
    Overloaded,
    from_fault,
    to_fault,
)
from proto.events import KvEvent
from workers.engine.admission import check_geometry, check_growth, check_spec
from workers.engine.block_ledger import BlockLedger
from workers.engine.computation import Computation
from workers.engine.engine_load import EngineLoad
from workers.engine.engine_settings import EngineSettings
from workers.engine.freezer import Freezer
from workers.engine.hash_chain import HashChain
from workers.engine.outcome import Outcome
from workers.engine.rates import Rates
from workers.engine.runner import Runner
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence, SequenceKv, SequenceSpec, SequenceState
from workers.engine.step import EngineListener, SequenceProgress, StepOutput, StepPlan


class Engine:
    """See the module. `context_tokens` is what the model and the pool allow a sequence, prompt and answer."""

    def __init__(self, runner: Runner, settings: EngineSettings, listener: EngineListener) -> None:
        check_geometry(runner, settings)
        self.settings = settings
        self.context_tokens = min(settings.context_tokens, settings.num_blocks * settings.block_size)
        self.rates = Rates()
        self._listener = listener
        self._computation = Computation(runner, settings, listener, self.rates)
        self._ledger = BlockLedger(settings.num_blocks, settings.block_size)
        self._scheduler = Scheduler(settings, self._ledger)
        self._freezer = Freezer(self._scheduler)
        self._sequences: dict[str, Sequence] = {}
        self._changed = threading.Condition(threading.Lock())
        self._change_listeners: list[Callable[[], None]] = []
        self._num_changes = 0
        self._planned_at = -1
        self._running_plan: StepPlan | None = None
        self._is_stopping = False
        self._fault: Fault | None = None
        self._num_arrivals = 0
        self._num_steps = 0
        self._computed_tokens = 0
        self._prompt_tokens = 0

    # The verbs: from any thread.

    def match(self, tokens: list[int], salt: bytes) -> int:
        """Tokens of the longest cached prefix that a GENERATE of `tokens` could use; claims nothing."""
        chain = HashChain(tokens, salt, self.settings.block_size)
        return len(self._ledger.match(chain, len(tokens) - 1)) * self.settings.block_size

    def add(self, spec: SequenceSpec, *, await_kv: bool = False) -> int:
        """Takes a sequence in and gives it the cached prefix, whose length in tokens is the answer.

        With `await_kv` it is not scheduled before `land` or `recall`.

        Raises:
            PromptTooLong: it can never fit.
            InvalidRequest: a field is wrong, or the name is taken.
            Overloaded: too many wait already.
            InternalFault: the engine has ended.
        """
        check_spec(spec, self.settings, self.context_tokens)
        sequence = self._new_sequence(spec)
        # Hashed before the lock is taken, so that under it the same look-up is quick.
        self._ledger.match(sequence.chain, sequence.max_cached_tokens)
        with self._changed:
            self._check_open(spec.sequence)
            self._num_arrivals += 1
            sequence.rank = (spec.priority, self._num_arrivals)
            self._sequences[spec.sequence] = sequence
            self._prompt_tokens += len(spec.tokens)
            self._scheduler.claim(sequence)
            if not await_kv:
                self._make_schedulable(sequence)
            return sequence.num_computed

    def set_aside(self, sequence: str, end: int) -> list[int]:
        """Blocks for the tokens of an awaiting sequence from its claimed prefix to `end` (not included).

        They are the caller's, to have them written, until it hands them to `land` or `give_back`.

        Raises:
            GrantRefused: no blocks to spare, `end` lies outside, or the sequence awaits nothing (any more).
        """
        with self._changed:
            found = self._awaiting(sequence)
            if found is None:
                raise GrantRefused(job=sequence, reason="it awaits no KV")
            if not found.num_computed < end <= found.max_cached_tokens:
                raise GrantRefused(job=sequence, reason=f"it has no use for tokens up to {end}")
            if found.num_computed % self.settings.block_size:
                raise GrantRefused(job=sequence, reason="its KV ends within a block")
            num_blocks = self._ledger.blocks_for(end) - len(found.blocks)
            if not self._scheduler.can_spare(num_blocks):
                raise GrantRefused(job=sequence, reason="no blocks to spare")
            return self._ledger.pool.set_aside(num_blocks)

    def land(self, sequence: str, blocks: list[int], end: int) -> bool:
        """As `lay`, and all that the sequence awaited: it is scheduled."""
        with self._changed:
            found = self._lay(sequence, blocks, end)
            if found is not None:
                self._make_schedulable(found)
            return found is not None

    def lay(self, sequence: str, blocks: list[int], end: int) -> bool:
        """The KV of the tokens from the claimed prefix to `end` lies in `blocks`: they become the sequence's.

        It goes on awaiting; unless `end` lies within a block, more can be set aside. False when it is gone or
        awaits nothing: the blocks remain the caller's.

        Raises:
            InternalFault: the blocks do not fit that range.
        """
        with self._changed:
            return self._lay(sequence, blocks, end) is not None

    def extend(self, sequence: str, tokens: list[int]) -> bool:
        """Tokens that were generated for an awaiting sequence elsewhere. False when it is gone or awaits
        nothing.

        Raises:
            InvalidRequest: no token of this model, or the sequence would have ended with them.
        """
        with self._changed:
            found = self._awaiting(sequence)
            if found is None:
                return False
            check_growth(found, tokens, self.settings)
            found.tokens.extend(tokens)
            return True

    def recall(self, sequence: str) -> bool:
        """Awaits no longer: the sequence is computed here. False when it is gone or awaited nothing."""
        with self._changed:
            found = self._awaiting(sequence)
            if found is not None:
                self._make_schedulable(found)
            return found is not None

    def give_back(self, blocks: list[int]) -> None:
        """Blocks that were set aside return to the pool; nobody writes to them any more."""
        with self._changed:
            self._ledger.pool.give_back(blocks)
            self._wake()

    def cancel(self, sequence: str) -> bool:
        """Ends a sequence in whatever state, without a word to the listener.

        In the running step it is freed when that ends, in its midst if nobody wants any of it. False when it
        is gone or was cancelled before.
        """
        with self._changed:
            found = self._sequences.get(sequence)
            if found is None or found.is_cancelled:
                return False
            found.is_cancelled = True
            if found.is_in_step:
                self._reconsider_step()
            else:
                self._end(found)
                self._wake()
            return True

    def freeze(self, sequence: str) -> bool:
        """Stops a sequence between two steps; the listener hears `is_frozen`, or how it ended.

        A running step is abandoned in its midst when all of it is to be frozen, or cancelled. The sequence
        keeps its blocks, until it is thawed or cancelled. Asked twice, heard twice. False when it is gone.
        """
        with self._changed:
            found = self._sequences.get(sequence)
            if found is None or found.is_cancelled:
                return False
            self._freezer.ask(found)
            self._reconsider_step()
            self._wake()
            return True

    def thaw(self, sequence: str) -> bool:
        """A frozen sequence goes on where it stands, one not frozen yet is not. False when it was not."""
        with self._changed:
            found = self._sequences.get(sequence)
            has_thawed = found is not None and self._freezer.thaw(found)
            self._reconsider_step()
            self._wake()
            return has_thawed

    def pin_sequence(self, sequence: str, first: int) -> SequenceKv | None:
        """Keeps the blocks of a sequence from number `first` on whose KV changes no more, until `unpin`.

        One that waits gets the cached prefix that it would get at its turn. None when it is gone.
        """
        with self._changed:
            found = self._sequences.get(sequence)
            if found is None or found.is_cancelled:
                return None
            if found.state in (SequenceState.WAITING, SequenceState.FROZEN):
                self._scheduler.claim(found)
            blocks = self._ledger.settled(found)[first:]
            self._ledger.pool.share(blocks)
            return SequenceKv(list(found.tokens), found.num_computed, blocks)

    def release(self, sequence: str) -> bool:
        """Lets a held PREFILL go; its full blocks stay cached. False when there is no such held sequence."""
        with self._changed:
            found = self._sequences.get(sequence)
            if found is None or found.state is not SequenceState.HELD:
                return False
            self._end(found)
            self._wake()
            return True

    def pin(self, hashes: Ordered[bytes]) -> list[int]:
        """Keeps the blocks of the longest cached prefix of `hashes` from eviction, until `unpin`."""
        with self._changed:
            blocks = self._ledger.cache.match(hashes)
            self._ledger.pool.share(blocks)
            return blocks

    def unpin(self, blocks: list[int]) -> None:
        with self._changed:
            self._ledger.pool.free(blocks)
            self._wake()

    def block_table(self, sequence: str) -> list[int]:
        """The blocks that `sequence` owns, in the order of its tokens; none when it is gone."""
        with self._changed:
            found = self._sequences.get(sequence)
            return list(found.blocks) if found else []

    def take_events(self) -> list[KvEvent]:
        """How the prefix cache has changed since the last call: replayed, it gives what the cache holds."""
        with self._changed:
            return self._ledger.cache.take_events()

    def load(self) -> EngineLoad:
        with self._changed:
            states = Counter(sequence.state for sequence in self._sequences.values())
            pool = self._ledger.pool
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
                prefill_rate=self.rates.prefill_rate,
                decode_step_s=self.rates.decode_step_s,
                hit_tokens=self._scheduler.hit_tokens,
                prompt_tokens=self._prompt_tokens,
                num_steps=self._num_steps,
                computed_tokens=self._computed_tokens,
                num_preemptions=self._scheduler.num_preemptions,
            )

    @property
    def fault(self) -> Fault | None:
        """Why the engine has ended, or what is wrong with it now."""
        return self._fault or self._computation.stall

    @property
    def is_healthy(self) -> bool:
        return self.fault is None

    # The steps: from their one driver.

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called, under the lock, when there may be something to do; it must only take note."""
        self._change_listeners.append(listener)

    def begin_step(self) -> StepPlan | None:
        """Plans a step, to be handed to `end_step` before the next is begun. None: there is nothing to do."""
        with self._changed:
            self._planned_at = self._num_changes
            frozen = self._freezer.freeze_asked()
            plan = self._scheduler.plan()
            self._running_plan = plan
        if frozen:
            self._listener.on_step(StepOutput(frozen))
        if plan.is_empty:
            return None
        self._computation.begin()
        return plan

    def end_step(self, plan: StepPlan) -> None:
        """Computes what was planned and takes it in; it has taken the time since `begin_step`.

        Raises:
            InternalFault: it was the last of too many steps in a row that failed.
        """
        take_in = self._computation.run(plan)
        with self._changed:
            self._running_plan = None
            outcome = take_in(plan, self._ledger)
            self._computed_tokens += outcome.computed_tokens
            self._settle(outcome)
        if outcome.events:
            self._listener.on_step(StepOutput(outcome.events))
        if self._computation.num_failed == self.settings.max_failed_steps:
            raise InternalFault(reason=f"{self._computation.num_failed} steps failed in a row")

    def step_once(self) -> bool:
        """Plans, computes and takes in one step. False when there was nothing to do. Raises as `end_step`."""
        plan = self.begin_step()
        if plan is not None:
            self.end_step(plan)
        return plan is not None

    def wait_work(self) -> bool:
        """Waits until something has changed since the last plan; False when the engine is to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._num_changes != self._planned_at)
            return not self._is_stopping

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def stop(self) -> None:
        """Asks the engine thread to end after the step it is in; from any thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def end(self, error: KvmeshError) -> None:
        """The engine thread cannot go on: every sequence ends with `error`, and no other is taken in."""
        with self._changed:
            self._fault = to_fault(error)
            names = list(self._sequences)
            for sequence in list(self._sequences.values()):
                self._end(sequence)
        self._listener.on_step(StepOutput([SequenceProgress(name, fault=self._fault) for name in names]))

    # Under the lock.

    def _new_sequence(self, spec: SequenceSpec) -> Sequence:
        tokens = list(spec.tokens)
        return Sequence(
            spec=spec,
            tokens=tokens,
            chain=HashChain(tokens, spec.salt, self.settings.block_size),
            rank=(spec.priority, 0),
            token_limit=min(spec.num_prompt + spec.max_tokens, self.context_tokens),
        )

    def _check_open(self, name: str) -> None:
        if self._fault is not None:
            raise from_fault(self._fault)
        if name in self._sequences:
            raise InvalidRequest(field="sequence", reason=f"{name} is taken")
        num_running = len(self._scheduler.running)
        if len(self._sequences) - num_running >= self.settings.max_waiting:
            raise Overloaded(reason="the waiting list is full", retry_after_s=self._wait_s())

    def _wait_s(self) -> float:
        """Seconds until the tokens that wait are prefilled, as far as this engine knows its rate."""
        rate = self.rates.prefill_rate
        return max(1.0, self._scheduler.count_waiting_tokens() / rate) if rate else 1.0

    def _awaiting(self, name: str) -> Sequence | None:
        found = self._sequences.get(name)
        return found if found is not None and found.state is SequenceState.AWAITING else None

    def _lay(self, name: str, blocks: list[int], end: int) -> Sequence | None:
        found = self._awaiting(name)
        if found is None:
            return None
        num_blocks = self._ledger.blocks_for(end) - len(found.blocks)
        if not found.num_computed < end <= found.max_cached_tokens or len(blocks) != num_blocks:
            raise InternalFault(reason=f"{len(blocks)} blocks do not hold {name} up to {end}")
        self._ledger.land(found, blocks, end)
        found.is_landed = True
        return found

    def _reconsider_step(self) -> None:
        """A step that would go on for nobody's sake is abandoned."""
        plan = self._running_plan
        if plan is not None and plan.rows:
            asked = self._freezer.asked
            plan.is_wanted = not all(each.is_cancelled or each.name in asked for each in plan.sequences)

    def _make_schedulable(self, sequence: Sequence) -> None:
        self._scheduler.enqueue(sequence)
        self._wake()

    def _settle(self, outcome: Outcome) -> None:
        self._num_steps += 1
        for sequence in outcome.complete:
            self._scheduler.remove(sequence)
            sequence.state = SequenceState.HELD
        for sequence in outcome.ended:
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        self._ledger.strip(sequence)
        sequence.state = SequenceState.ENDED
        del self._sequences[sequence.name]

    def _wake(self) -> None:
        self._num_changes += 1
        self._changed.notify_all()
        for listener in self._change_listeners:
            listener()
