"""The engine: sequences in, tokens out, and every block accounted for.

One object keeps the books, of sequences, pool, prefix cache and scheduler, behind one lock. The lock is held
while a step is planned, while its outcome is taken in, and in the short verbs, never during the computation;
so an event loop may call the verbs as they are. The steps belong to one driver: a thread (`engine_thread`),
the only caller of `step_once` and `wait_work`, or who takes the two halves of a step itself, `begin_step` and
`end_step`, once `on_change` has said that there is something to do. Here is no asyncio and no torch.
"""

import threading
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered

from proto.errors import (
    Fault,
    InternalFault,
    InvalidRequest,
    KvmeshError,
    Overloaded,
    from_fault,
    to_fault,
)
from proto.events import KvEvent
from workers.engine.admission import check_geometry, check_spec
from workers.engine.books import Books
from workers.engine.computation import Computation
from workers.engine.engine_load import EngineLoad
from workers.engine.engine_settings import EngineSettings
from workers.engine.hash_chain import HashChain
from workers.engine.rates import Rates
from workers.engine.runner import Runner
from workers.engine.sequence import SequenceKv, SequenceSpec
from workers.engine.speculation import Drafting, Speculation
from workers.engine.step import EngineListener, SequenceProgress, StepOutput, StepPlan


class Engine:
    """See the module. `context_tokens` is what the model and the pool allow a sequence, prompt and answer.

    Args: `drafting`: who guesses tokens that come next, so that a step may give several; None: nobody.
    """

    def __init__(
        self,
        runner: Runner,
        settings: EngineSettings,
        listener: EngineListener,
        drafting: Drafting | None = None,
    ) -> None:
        check_geometry(runner, settings)
        self.settings = settings
        self.rates = Rates()
        self._listener = listener
        self._computation = Computation(runner, settings, listener, self.rates)
        speculation = None if drafting is None else Speculation(drafting, self.rates)
        self._books = Books(settings, self.rates, speculation)
        self.context_tokens = self._books.context_tokens
        self._changed = threading.Condition(threading.Lock())
        self._change_listeners: list[Callable[[], None]] = []
        self._num_changes = 0
        self._planned_at = -1
        self._is_stopping = False
        self._fault: Fault | None = None

    # The verbs: from any thread.

    def match(self, tokens: list[int], salt: bytes, hashes: Ordered[bytes] = ()) -> int:
        """Tokens of the longest cached prefix that a GENERATE of `tokens` could use; claims nothing.

        Args: `hashes`: those of the first blocks, as far as they are known.
        """
        chain = HashChain(tokens, salt, self.settings.block_size, hashes)
        return len(self._books.ledger.match(chain, len(tokens) - 1)) * self.settings.block_size

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
        sequence = self._books.new_sequence(spec)
        if not spec.hashes:  # hashed before the lock is taken, so that under it the same look-up is quick
            self._books.ledger.match(sequence.chain, sequence.max_cached_tokens)
        with self._changed:
            self._check_open(spec.sequence)
            num_cached = self._books.add(sequence, await_kv=await_kv)
            self._wake()
            return num_cached

    def set_aside(self, sequence: str, end: int) -> list[int]:
        """Blocks for the tokens of an awaiting sequence from its claimed prefix to `end` (not included).

        They are the caller's, to have them written, until it hands them to `land` or `give_back`.

        Raises:
            GrantRefused: no blocks to spare, `end` lies outside, or the sequence awaits nothing (any more).
        """
        with self._changed:
            return self._books.set_aside(sequence, end)

    def land(self, sequence: str, blocks: list[int], end: int) -> bool:
        """As `lay`, and all that the sequence awaited: it is scheduled."""
        with self._changed:
            is_laid = self._books.lay(sequence, blocks, end) and self._books.recall(sequence)
            self._wake()
            return is_laid

    def lay(self, sequence: str, blocks: list[int], end: int) -> bool:
        """The KV of the tokens from the claimed prefix to `end` lies in `blocks`: they become the sequence's.

        It goes on awaiting; unless `end` lies within a block, more can be set aside. False when it is gone or
        awaits nothing: the blocks remain the caller's.

        Raises:
            InternalFault: the blocks do not fit that range.
        """
        with self._changed:
            return self._books.lay(sequence, blocks, end)

    def extend(self, sequence: str, tokens: list[int]) -> bool:
        """Tokens that were generated for an awaiting sequence elsewhere. False when it is gone or awaits
        nothing.

        Raises:
            InvalidRequest: no token of this model, or the sequence would have ended with them.
        """
        with self._changed:
            return self._books.extend(sequence, tokens)

    def recall(self, sequence: str) -> bool:
        """Awaits no longer: the sequence is computed here. False when it is gone or awaited nothing."""
        with self._changed:
            is_recalled = self._books.recall(sequence)
            self._wake()
            return is_recalled

    def give_back(self, blocks: list[int]) -> None:
        """Blocks that were set aside return to the pool; nobody writes to them any more."""
        with self._changed:
            self._books.ledger.pool.give_back(blocks)
            self._wake()

    def cancel(self, sequence: str) -> bool:
        """Ends a sequence in whatever state, without a word to the listener.

        In the running step it is freed when that ends, in its midst if nobody wants any of it. False when it
        is gone or was cancelled before.
        """
        with self._changed:
            is_cancelled = self._books.cancel(sequence)
            self._wake()
            return is_cancelled

    def freeze(self, sequence: str) -> bool:
        """Stops a sequence between two steps; the listener hears `is_frozen`, or how it ended.

        A running step that reads prompts is abandoned in its midst when all of it is to be frozen, or
        cancelled; one that only decodes gives its tokens first. The sequence keeps its blocks, until it is
        thawed or cancelled. Asked twice, heard twice. False when it is gone.
        """
        with self._changed:
            is_asked = self._books.freeze(sequence)
            self._wake()
            return is_asked

    def freeze_computed(self, sequences: Iterable[str]) -> list[str]:
        """As `freeze`, between the same two steps: those of `sequences` that are computed or wait for it.

        They are the answer. The others, which await their KV, would gain nothing by standing still.
        """
        with self._changed:
            asked = [sequence for sequence in sequences if self._books.freeze_computed(sequence)]
            self._wake()
            return asked

    def thaw(self, sequence: str) -> bool:
        """A frozen sequence goes on where it stands, one not frozen yet is not. False when it was not."""
        with self._changed:
            has_thawed = self._books.thaw(sequence)
            self._wake()
            return has_thawed

    def pin_sequence(self, sequence: str, first: int) -> SequenceKv | None:
        """Keeps the blocks of a sequence from number `first` on whose KV changes no more, until `unpin`.

        One that waits gets the cached prefix that it would get at its turn. None when it is gone.
        """
        with self._changed:
            return self._books.pin_sequence(sequence, first)

    def release(self, sequence: str) -> bool:
        """Lets a held PREFILL go; its full blocks stay cached. False when there is no such held sequence."""
        with self._changed:
            is_released = self._books.release(sequence)
            self._wake()
            return is_released

    def pin(self, hashes: Ordered[bytes]) -> list[int]:
        """Keeps the blocks of the longest cached prefix of `hashes` from eviction, until `unpin`."""
        with self._changed:
            return self._books.pin(hashes)

    def unpin(self, blocks: list[int]) -> None:
        with self._changed:
            self._books.ledger.pool.free(blocks)
            self._wake()

    def block_table(self, sequence: str) -> list[int]:
        """The blocks that `sequence` owns, in the order of its tokens; none when it is gone."""
        with self._changed:
            found = self._books.sequences.get(sequence)
            return list(found.blocks) if found else []

    def take_events(self) -> list[KvEvent]:
        """How the prefix cache has changed since the last call: replayed, it gives what the cache holds."""
        with self._changed:
            return self._books.ledger.cache.take_events()

    def load(self) -> EngineLoad:
        with self._changed:
            return self._books.load()

    @property
    def fault(self) -> Fault | None:
        """Why the engine has ended, or what is wrong with it now."""
        return self._fault or self._computation.stall

    @property
    def has_ended(self) -> bool:
        return self._fault is not None

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
            frozen = self._books.freeze_asked()
            plan = self._books.plan_step()
        if frozen:
            self._listener.on_step(StepOutput(frozen))
        if plan.is_empty:
            return None
        self._computation.begin()
        return plan

    def end_step(self, plan: StepPlan) -> None:
        """Computes what was planned and takes it in; it has taken the time since `begin_step`.

        Raises:
            InternalFault: it was the last of too many steps in a row that failed, or the runner has ended.
        """
        take_in = self._computation.run(plan)
        with self._changed:
            outcome = take_in(plan, self._books.ledger)
            self._books.settle(outcome)
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
            names = list(self._books.sequences)
            for sequence in list(self._books.sequences.values()):
                self._books.end(sequence)
        self._listener.on_step(StepOutput([SequenceProgress(name, fault=self._fault) for name in names]))

    # Under the lock.

    def _check_open(self, name: str) -> None:
        if self._fault is not None:
            raise from_fault(self._fault)
        if name in self._books.sequences:
            raise InvalidRequest(field="sequence", reason=f"{name} is taken")
        if self._books.num_not_running >= self.settings.max_waiting:
            raise Overloaded(reason="the waiting list is full", retry_after_s=self._wait_s())

    def _wait_s(self) -> float:
        """Seconds until the tokens that wait are prefilled, as far as this engine knows its rate."""
        rate = self.rates.prefill_rate
        return max(1.0, self._books.waiting_tokens / rate) if rate else 1.0

    def _wake(self) -> None:
        self._num_changes += 1
        self._changed.notify_all()
        for listener in self._change_listeners:
            listener()
