"""Which requests this worker takes, where their prompts are prefilled, and how they end."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from proto.cards import ModelCard
from proto.errors import DeadlineExceeded, Fault, GoElsewhere, InvalidRequest, KvmeshError, to_fault
from proto.jobs import PrefillJob
from proto.names import new_id
from proto.requests import Decision, GenerateRequest, RoutedRequest
from proto.roles import Role
from proto.tokens import pack_tokens
from services.metrics import WorkerMetrics
from services.tracing import Tracing
from workers.decisions import Decisions
from workers.early_cancels import EarlyCancels
from workers.engine.engine import Engine
from workers.engine.grammar_state import GrammarState
from workers.engine.sequence import SequenceSpec
from workers.engine.step import SequenceProgress
from workers.grammars import GrammarCompiler
from workers.long_prompt import ReadPrompt, is_long, pack_first, read_prompt
from workers.outbox import Outbox
from workers.request_spec import plan_sequence
from workers.roles.hand_over_taker import TakerTools, Taking
from workers.roles.owned_job import JobEnd, OwnedJob
from workers.roles.prefill_choice import Choice, PrefillRules, Prompt, choose_place, here_now
from workers.roles.prefill_view import PrefillView
from workers.roles.remote_prefill import RemotePrefills
from workers.roles.term import Term
from workers.served import Served, ServedTable

MAX_DEADLINE_S = 86_400.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecodeRules:
    """Units: `token_bytes` of KV a token; `early_cancel_s` seconds that a cancel of a request not seen yet is
    remembered."""

    prefill: PrefillRules
    token_bytes: float
    early_cancel_s: float


class DecodeDesk:
    """Belongs to the event loop. `run` holds the tasks of grammars, of remote prefills and of hand-overs to
    here. Without `grammars` no answer can be constrained."""

    def __init__(
        self,
        term: Term,
        card: ModelCard,
        engine: Engine,
        outbox: Outbox,
        view: PrefillView,
        remote: RemotePrefills,
        taker: TakerTools,
        grammars: GrammarCompiler | None,
        rules: DecodeRules,
        tracing: Tracing,
        metrics: WorkerMetrics,
    ) -> None:
        self._term = term
        self._card = card
        self._engine = engine
        self._outbox = outbox
        self._view = view
        self._remote = remote
        self._taker = taker
        self._grammars = grammars
        self._rules = rules
        self._tracing = tracing
        self._metrics = metrics
        self._early_cancels = EarlyCancels(rules.early_cancel_s)
        self._group: asyncio.TaskGroup | None = None
        self.served = ServedTable()
        self.decisions = Decisions()
        self._reading = asyncio.Lock()

    async def run(self) -> None:
        """For ever. Cancel: remote prefills are called off."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None

    async def accept(self, routed: RoutedRequest) -> None:
        """Take a request; its first frame goes out at once. One that is here, or was, is taken twice.

        Only for a long prompt is there something to await: it is read while the loop turns. Cancel: as if it
        had not come.

        Raises:
            GoElsewhere: not the role, the state or the epoch for it.
            CallerFault: this request can never be served.
            DeadlineExceeded: its time is over.
            Overloaded: too many wait already.
        """
        request, decision = routed.request, routed.decision
        self.decisions.note(decision)
        prompt = None
        if self._is_wanted(request, decision) and is_long(request):
            with self.decisions.holding_open(decision):
                async with self._reading:  # one at a time: a slice of each would make a turn of the loop long
                    prompt = await read_prompt(request, self._card.kv_class)
        if self._is_wanted(request, decision):
            self._begin(request, prompt, decision.prefill_prefixes)

    def _is_wanted(self, request: GenerateRequest, decision: Decision) -> bool:
        """False: it is here, or was. Raises what `accept` says of what is not for this worker, or not now."""
        self._term.check_takes(Role.DECODE, decision.epoch)
        if request.model != self._card.name:
            raise GoElsewhere(worker=self._term.worker, reason=f"its model is {self._card.name}")
        is_known = self._outbox.has(request.request, request.attempt)
        return not is_known and not self._early_cancels.has(request.request, request.attempt)

    def _begin(
        self, request: GenerateRequest, prompt: ReadPrompt | None, prefixes: Mapping[str, int]
    ) -> None:
        spec = plan_sequence(request, self._card, prompt)
        self._check_grammar(spec.grammar)
        is_moving = request.source is not None and self._group is not None
        is_later = is_moving or spec.grammar is not None
        choice = None
        if not is_later and not spec.wants_scores:
            num_cached = self._engine.match(spec.tokens, spec.salt, spec.hashes)
            choice = self._choose(len(spec.tokens), num_cached, prefixes)
        is_remote = choice is not None and choice.is_remote
        cached = self._engine.add(spec, await_kv=is_remote or is_later)
        stream = self._outbox.open(request.request, request.attempt, request.client, request.offset)
        limit_s = min(request.deadline_s, MAX_DEADLINE_S)
        timer = asyncio.get_running_loop().call_later(limit_s, self._end_late, spec.sequence)
        served = Served(request, stream, min(cached, spec.num_prompt), timer, self._tracing.context())
        self.served.add(served)
        self._count(served, len(spec.tokens))
        if is_later:
            self._prepare_later(served, spec, cached, prefixes)
        elif choice is not None and choice.is_remote:
            self._send_prefill_away(served, spec.tokens, cached, choice.worker)

    def _check_grammar(self, grammar: GrammarState | None) -> None:
        if grammar is None:
            return
        if self._grammars is None:
            reason = "a simulated worker cannot heed it"
            raise InvalidRequest(field=grammar.constraint.field, reason=reason)
        if self._group is None:
            raise GoElsewhere(worker=self._term.worker, reason="it compiles no grammar now")

    def _prepare_later(
        self, served: Served, spec: SequenceSpec, cached: int, prefixes: Mapping[str, int]
    ) -> None:
        request = served.request
        assert self._group is not None
        if request.source is not None:
            served.taking = Taking(request.request, request.source, spec, cached, self._taker)
        preparing = self._prepare(served, spec, cached, prefixes)
        self._group.create_task(preparing, name=f"prepare {served.sequence}")

    async def _prepare(
        self, served: Served, spec: SequenceSpec, cached: int, prefixes: Mapping[str, int]
    ) -> None:
        """Its grammar first: as long as that takes, a source goes on with it."""
        if spec.grammar is not None and not await self._has_grammar(served, spec.grammar):
            return
        if served.taking is not None:
            await self._take_over(served, spec, served.taking)
        else:
            self._place(served, spec.tokens, cached, prefixes, can_leave=not spec.wants_scores)

    async def _has_grammar(self, served: Served, grammar: GrammarState) -> bool:
        """Whether the sequence can be followed in its grammar; one that has none has ended."""
        assert self._grammars is not None
        began_s = time.monotonic()
        try:
            await self._grammars.compile(grammar)
        except KvmeshError as error:
            if self.served.find(served.sequence) is served:
                self._end_with(served, error)
            return False
        self._metrics.grammar_wait_s.observe(time.monotonic() - began_s)
        self._tracing.record("grammar", began_s, served.trace)
        return self.served.find(served.sequence) is served

    async def _take_over(self, served: Served, spec: SequenceSpec, taking: Taking) -> None:
        """What its source generated goes out before anything that is generated here."""
        taken = await taking.run()
        if self.served.find(served.sequence) is not served:
            return
        served.note_taken(taken)
        if taken.tokens:
            served.first_s = time.monotonic()
        if taken.is_given:
            prefilled = served.prefilled() if taken.tokens else None
            self._outbox.take_over(served.stream, pack_tokens(taken.tokens), prefilled, taken.logprobs)
        tokens = spec.tokens + taken.tokens
        is_whole = taken.num_computed % self._card.kv_class.block_size == 0
        can_leave = is_whole and (bool(taken.tokens) or not spec.wants_scores)
        self._place(served, tokens, taken.num_computed, {}, can_leave=can_leave)
        if taking.stopped_s:
            self._metrics.hand_over_stop_s.observe(time.monotonic() - taking.stopped_s)
            num_here = taken.num_computed
            self._tracing.record("hand-over", taking.stopped_s, served.trace, num_computed=num_here)

    def _place(
        self,
        served: Served,
        tokens: list[int],
        num_computed: int,
        prefixes: Mapping[str, int],
        *,
        can_leave: bool,
    ) -> None:
        """A sequence that awaited something is computed: here, or but for its last token elsewhere."""
        choice = self._choose(len(tokens), num_computed, prefixes, served) if can_leave else None
        if choice is not None and choice.is_remote:
            self._send_prefill_away(served, tokens, num_computed, choice.worker)
        else:
            self._engine.recall(served.sequence)

    def _choose(
        self, num_tokens: int, cached: int, prefixes: Mapping[str, int], served: Served | None = None
    ) -> Choice:
        """Where the KV of so many tokens is computed, but for the last, which is always computed here.

        Args: `served`: whose they are, if that awaits them here already.
        """
        began_s = time.monotonic()
        prompt = Prompt(num_tokens - 1, cached, self._rules.token_bytes)
        here = here_now(self._engine.load(), num_own=0 if served is None else 1)
        others = self._view.others(prefixes) if self._group is not None else []
        has_room = self._remote.has_room(prompt.uncached_tokens)
        choice = choose_place(prompt, here, others, has_room, self._rules.prefill)
        terms_s = asdict(choice.terms) if choice.terms is not None else {}
        self._metrics.prefill_chosen("remote" if choice.is_remote else "local", choice.reason)
        self._metrics.prefill_predicted(terms_s)
        trace = served.trace if served is not None else None
        self._tracing.record(
            "prefill choice", began_s, trace, reason=choice.reason, worker=choice.worker, **terms_s
        )
        return choice

    def _send_prefill_away(self, served: Served, tokens: list[int], cached: int, best: str) -> None:
        assert self._group is not None
        request = served.request
        end = len(tokens) - 1
        job = PrefillJob(
            job=new_id(),
            request=request.request,
            model=request.model,
            owner=self._term.worker,
            owner_incarnation=self._term.incarnation,
            prompt=pack_first(end, request, tokens),
            deadline_s=request.deadline_s,
            cached_tokens=cached,
            salt=request.salt,
            priority=request.priority,
            trace=self._tracing.inject({}),
        )
        served.job = OwnedJob(job, served.sequence, cached, end, best)
        self._remote.announce(served.job)
        self._group.create_task(self._await_prefill(served, served.job), name=f"remote prefill {job.job}")

    async def _await_prefill(self, served: Served, owned: OwnedJob) -> None:
        end = await self._remote.run(owned)
        if end is JobEnd.LANDED:
            self._metrics.remote_prefills.inc()
            self._metrics.prefill_wait_s.observe(time.monotonic() - served.began_s)
        elif end is JobEnd.FAILED:
            self._metrics.local_prefills.inc()

    def _count(self, served: Served, num_tokens: int) -> None:
        self._metrics.prompt_tokens.inc(num_tokens)
        if served.cached_tokens:
            self._metrics.hit_tokens.inc(served.cached_tokens)
            self._metrics.prefix_hits.inc()

    def take_progress(self, events: list[SequenceProgress]) -> None:
        """What a step did: tokens go out, ends close their streams."""
        for event in events:
            served = self.served.find(event.sequence)
            if served is not None and not event.is_frozen:
                self._take_one(served, event)

    def _take_one(self, served: Served, event: SequenceProgress) -> None:
        prefilled = None
        if event.tokens and not served.first_s:
            served.first_s = time.monotonic()
            served.prompt_logprobs = event.prompt_logprobs
            prefilled = served.prefilled()
            if served.job is None:
                self._metrics.local_prefills.inc()
        served.num_steps += bool(event.tokens)
        self._metrics.decode_tokens.inc(len(event.tokens))
        is_over = event.finish is not None or event.fault is not None
        end = served.end(event.finish, self._fault_of(event)) if is_over else None
        self._outbox.add(served.stream, pack_tokens(event.tokens), end, prefilled, event.logprobs)
        if end is not None:
            self._forget(served, end.fault.code if end.fault is not None else "")
            self._metrics.decode_served.inc()
            self._term.num_served += 1
            self._metrics.note_served(self._term.role, self._term.epoch, "sequence")

    def _fault_of(self, event: SequenceProgress) -> Fault | None:
        """When the engine itself has ended, its sequences are sound and go on elsewhere."""
        if event.fault is None or self._engine.fault is None:
            return event.fault
        return to_fault(GoElsewhere(worker=self._term.worker, reason="its engine has ended"))

    def send_elsewhere(self, reason: str) -> None:
        """End every attempt here with a word to its frontend to go on with it on another worker."""
        for served in self.served.all():
            self._end_with(served, GoElsewhere(worker=self._term.worker, reason=reason))

    def _end_late(self, sequence: str) -> None:
        served = self.served.find(sequence)
        if served is not None:
            limit_s = served.request.deadline_s
            self._end_with(served, DeadlineExceeded(what="the request", limit_s=limit_s))

    def _end_with(self, served: Served, error: KvmeshError) -> None:
        self._end_cancelled(served)
        self._outbox.add(served.stream, b"", served.end(None, to_fault(error)))

    def cancel(self, request: str, attempt: int) -> None:
        """End an attempt and every earlier one, remembered for a while: the request may come after this."""
        for served in self.served.attempts_up_to(request, attempt):
            self._end_cancelled(served)
        self._outbox.drop_up_to(request, attempt)
        self._early_cancels.note(request, attempt)

    def clients(self) -> set[str]:
        """The frontends that streams of this worker go to."""
        return self._outbox.clients()

    def cancel_client(self, client: str) -> None:
        """A frontend is gone for good: nothing more is computed for it."""
        if client not in self.clients():
            return
        gone = self.served.of_client(client)
        for served in gone:
            self._end_cancelled(served)
        self._outbox.drop_client(client)
        log.warning("a frontend is gone", extra={"client": client, "num_cancelled": len(gone)})

    def _forget(self, served: Served, code: str) -> None:
        """Its decoding, from the first token to the end, is a span."""
        self.served.drop(served)
        if served.first_s:
            num_tokens = served.stream.offset - served.stream.base
            self._tracing.record(
                "decode",
                served.first_s,
                served.trace,
                code,
                num_tokens=num_tokens,
                num_steps=served.num_steps,
            )

    def _end_cancelled(self, served: Served) -> None:
        self._forget(served, "cancelled")
        self._engine.cancel(served.sequence)
        if served.job is not None:
            served.job.settle(JobEnd.CANCELLED)
        if served.taking is not None:
            served.taking.stop()
