"""One call from prompts to text: templated, tokenised, checked, routed, read. Knows no HTTP and no JSON."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from frontend.models import ModelDirectory, ServedModel
from frontend.requests.stream_hub import StreamHub
from frontend.requests.waker import Waker
from frontend.shown_tokens import ShownToken
from frontend.text.chat_messages import Chat
from frontend.text.tokenize_pool import TokenizePool
from frontend.text_choice import ChoiceFacts, Piece, TextChoice
from frontend.traffic import Traffic
from proto.constraints import Constraint
from proto.errors import DeadlineExceeded, GoElsewhere, InvalidRequest, KvmeshError, PromptTooLong
from proto.logprobs import check_scores
from proto.names import new_id
from proto.requests import MAX_SEED, GenerateRequest, Sampling, Stopping
from proto.tokens import pack_tokens
from services.grammars.trials import Trials
from services.metrics import FrontendMetrics
from services.tracing import Tracing

Prompt = Chat | str | list[int]


class Plan(msgspec.Struct, frozen=True):
    """What a client asks for, checked as far as it can be without the model.

    `prompt_field` is how the client names its prompts; `max_tokens` None: all that the context holds;
    `seed` None: any, over that of `sampling`; `wanted_worker` the only worker that may serve it.
    """

    model: str
    prompts: Sequence[Prompt]
    prompt_field: str
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    salt: str = ""
    priority: int = 0
    wanted_worker: str = ""
    constraint: Constraint | None = None


class Usage(msgspec.Struct, frozen=True):
    """Units: tokens, over all choices."""

    num_prompt: int
    num_out: int
    num_cached: int


class Generation:
    """The answer to one call, while it comes. See `Generator.open`."""

    def __init__(self, choices: list[TextChoice], waker: Waker) -> None:
        self._choices = choices
        self._waker = waker

    async def wait_pieces(self) -> list[Piece]:
        """All that came since the last time, at least one piece; empty once every choice has finished.

        Raises:
            KvmeshError: a choice has failed.
        """
        while True:
            pieces = [piece for choice in self._choices for piece in choice.take()]
            if pieces or all(choice.finish is not None for choice in self._choices):
                return pieces
            await self._waker.wait()

    def usage(self) -> Usage:
        return Usage(
            num_prompt=sum(choice.num_prompt for choice in self._choices),
            num_out=sum(choice.num_out for choice in self._choices),
            num_cached=sum(choice.num_cached for choice in self._choices),
        )

    def facts(self, index: int) -> ChoiceFacts:
        return self._choices[index].facts()

    def prompt_scores(self, index: int) -> list[ShownToken]:
        return self._choices[index].prompt_scores()

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def outcome(self) -> str:
        """How the first choice finished; a choice that has not is cancelled."""
        return self._choices[0].finish or "cancelled"

    def close(self) -> None:
        """What still runs is cancelled, wherever it is."""
        for choice in self._choices:
            choice.close()


class Generator:
    """Opens calls. `stop_admitting` refuses new ones while those in hand go on."""

    def __init__(
        self,
        client: str,
        *,
        models: ModelDirectory,
        pool: TokenizePool,
        trials: Trials,
        hub: StreamHub,
        request_limit_s: float,
        tokenize_limit_s: float,
        tracing: Tracing,
        metrics: FrontendMetrics,
        traffic: Traffic,
    ) -> None:
        self.metrics = metrics
        self._traffic = traffic
        self._tracing = tracing
        self._client = client
        self._models = models
        self._pool = pool
        self._trials = trials
        self._hub = hub
        self._request_limit_s = request_limit_s
        self._tokenize_limit_s = tokenize_limit_s
        self._is_admitting = True
        self._num_open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_admitting(self) -> bool:
        return self._is_admitting

    @property
    def request_limit_s(self) -> float:
        return self._request_limit_s

    def stop_admitting(self) -> None:
        self._is_admitting = False

    async def wait_idle(self, limit_s: float) -> None:
        """
        Raises:
            DeadlineExceeded: calls are open still.
        """
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(what=f"the drain of {self._num_open} calls", limit_s=limit_s) from error

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncIterator[Generation]:
        """Every prompt of `plan` is on its way; at the end of the body what still runs is cancelled.

        Cancel: before the body nothing has been sent.

        Raises:
            KvmeshError: what is wrong with the request, or with the mesh.
        """
        arrived_s = time.monotonic()
        outcome = "cancelled"
        self._count_open(1)
        try:
            with self._tracing.span("request", model=plan.model):
                generation = await self._begin(plan, arrived_s)
                try:
                    yield generation
                    outcome = generation.outcome
                finally:
                    self._count_cached(generation)
                    generation.close()
        except KvmeshError as error:
            outcome = error.code
            raise
        finally:
            self._count_open(-1)
            self.metrics.duration_s.observe(time.monotonic() - arrived_s)
            self.metrics.finished(outcome)

    def _count_open(self, change: int) -> None:
        self._num_open += change
        self.metrics.running.set(self._num_open)
        if self._num_open:
            self._idle.clear()
        else:
            self._idle.set()

    def _count_cached(self, generation: Generation) -> None:
        self.metrics.cached_tokens.inc(generation.usage().num_cached)

    async def _begin(self, plan: Plan, arrived_s: float) -> Generation:
        if not self._is_admitting:
            raise GoElsewhere(worker=self._client, reason="this frontend is ending")
        try:
            async with asyncio.timeout(self._request_limit_s):
                model = await self._models.load(self._models.find(plan.model))
                if plan.constraint is not None:
                    await self._trials.check(plan.constraint)
                prompts = [await self._tokenize(model, prompt) for prompt in plan.prompts]
        except TimeoutError as error:
            raise DeadlineExceeded(what="the request", limit_s=self._request_limit_s) from error
        for tokens in prompts:
            _check_prompt(model, tokens, plan.prompt_field)
            check_scores(plan.sampling.prompt_logprobs, len(tokens))
        _check_bias(model, plan.sampling)
        return self._send(plan, model, prompts, arrived_s)

    async def _tokenize(self, model: ServedModel, prompt: Prompt) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        tokenizer, limit_s = model.text.tokenizer, self._tokenize_limit_s
        if isinstance(prompt, str):
            return await self._pool.encode(tokenizer, prompt, add_special_tokens=True, limit_s=limit_s)
        if model.text.template is None:
            raise InvalidRequest(field="model", reason=f"{model.card.name!r} has no chat template")
        return await self._pool.encode_chat(model.text.template, tokenizer, prompt, limit_s)

    def _send(self, plan: Plan, model: ServedModel, prompts: list[list[int]], arrived_s: float) -> Generation:
        waker = Waker()
        choices: list[TextChoice] = []
        try:
            for index, tokens in enumerate(prompts):
                choices.append(self._begin_choice(index, plan, model, tokens, waker, arrived_s))
        except KvmeshError:
            Generation(choices, waker).close()
            raise
        return Generation(choices, waker)

    def _begin_choice(
        self, index: int, plan: Plan, model: ServedModel, tokens: list[int], waker: Waker, arrived_s: float
    ) -> TextChoice:
        ends = () if plan.ignore_eos else model.card.eos_tokens
        stop_tokens = frozenset((*ends, *plan.stop_tokens))
        request = self._request(plan, model, tokens, arrived_s)
        choice = TextChoice(
            index,
            self._hub.begin(request, stop_tokens, waker),
            self._hub,
            model.text.tokenizer,
            plan.stops,
            stop_tokens,
            len(tokens),
            arrived_s,
            self.metrics,
            self._traffic.begin(plan.model, len(tokens)),
        )
        self.metrics.tokens_in.inc(len(tokens))
        return choice

    def _request(
        self, plan: Plan, model: ServedModel, tokens: list[int], arrived_s: float
    ) -> GenerateRequest:
        room = model.card.context_tokens - len(tokens)
        seed = secrets.randbelow(MAX_SEED) if plan.seed is None else plan.seed & MAX_SEED
        return GenerateRequest(
            request=new_id(),
            attempt=0,
            model=plan.model,
            client=self._client,
            prompt=pack_tokens(tokens),
            sampling=msgspec.structs.replace(plan.sampling, seed=seed),
            stopping=Stopping(
                min(plan.max_tokens or room, room), list(plan.stop_tokens), plan.ignore_eos, plan.min_tokens
            ),
            deadline_s=max(0.001, arrived_s + self._request_limit_s - time.monotonic()),
            salt=plan.salt,
            priority=plan.priority,
            wanted_worker=plan.wanted_worker,
            constraint=plan.constraint,
        )


def _check_prompt(model: ServedModel, tokens: list[int], field: str) -> None:
    """
    Raises:
        InvalidRequest: no token, or one that the model does not have.
        PromptTooLong: no room for an answer is left.
    """
    if not tokens:
        raise InvalidRequest(field=field, reason="it has no tokens")
    if len(tokens) >= model.card.context_tokens:
        raise PromptTooLong(num_tokens=len(tokens), limit_tokens=model.card.context_tokens)
    if not 0 <= min(tokens) <= max(tokens) < model.card.vocab_size:
        raise InvalidRequest(field=field, reason=f"token ids are 0 to {model.card.vocab_size - 1}")


def _check_bias(model: ServedModel, sampling: Sampling) -> None:
    """Raises InvalidRequest: a token that the model does not have."""
    if any(not 0 <= token < model.card.vocab_size for token in sampling.logit_bias):
        raise InvalidRequest(field="logit_bias", reason=f"token ids are 0 to {model.card.vocab_size - 1}")
