"""One call from prompts to text: templated, tokenised, checked, routed, read. Knows no HTTP and no JSON."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from frontend.choices import AnswerOrder, ChoiceMaker, num_prompt_best
from frontend.manner import find_manner
from frontend.models import ServedModel
from frontend.plan import Plan, Prompt
from frontend.prompt_reader import PromptReader, check_tokens
from frontend.requests.stream_hub import StreamHub
from frontend.requests.waker import Waker
from frontend.text_choice import ChoiceFacts, Piece, TextChoice
from frontend.token_scores import TokenScores
from frontend.traffic import Traffic
from proto.errors import DeadlineExceeded, GoElsewhere, InvalidRequest, KvmeshError, PromptTooLong
from proto.logprobs import check_scores
from proto.requests import Sampling
from services.grammars.trials import Trials
from services.metrics import FrontendMetrics
from services.tracing import Tracing


class Usage(msgspec.Struct, frozen=True):
    """Units: tokens, over all choices; those of a prompt once for all its choices. `num_reasoning` of those
    out; None for a model that does not tell its reasoning apart."""

    num_prompt: int
    num_out: int
    num_cached: int
    num_reasoning: int | None = None


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
        leaders = [choice for choice in self._choices if choice.leader is None]
        return Usage(
            num_prompt=sum(choice.num_prompt for choice in leaders),
            num_out=sum(choice.num_out for choice in self._choices),
            num_cached=sum(choice.num_cached for choice in leaders),
            num_reasoning=self._num_reasoning(),
        )

    def _num_reasoning(self) -> int | None:
        told = [choice.num_reasoning for choice in self._choices if choice.tells_reasoning]
        return sum(told) if told else None

    def facts(self, index: int) -> ChoiceFacts:
        return self._choices[index].facts()

    def prompt_scores(self, index: int) -> list[TokenScores]:
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
        reader: PromptReader,
        trials: Trials,
        hub: StreamHub,
        request_limit_s: float,
        tracing: Tracing,
        metrics: FrontendMetrics,
        traffic: Traffic,
    ) -> None:
        self.reader = reader
        self._metrics = metrics
        self._tracing = tracing
        self._client = client
        self._trials = trials
        self._choices = ChoiceMaker(client, hub, metrics, traffic)
        self._max_choices = hub.max_live
        self._request_limit_s = request_limit_s
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
    async def open(self, plan: Plan, arrived_s: float) -> AsyncIterator[Generation]:
        """Every prompt of `plan` is on its way; at the end of the body what still runs is cancelled.

        Cancel: before the body nothing has been sent.

        Units: `arrived_s`, from when on the client waits, on the monotonic clock. Its time for the request
            begins now: what it took to send it is bounded by itself.

        Raises:
            KvmeshError: what is wrong with the request, or with the mesh.
        """
        deadline_s = time.monotonic() + self._request_limit_s
        outcome = "cancelled"
        self._count_open(1)
        try:
            with self._tracing.span("request", model=plan.model):
                generation = await self._begin(plan, arrived_s, deadline_s)
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
            self._metrics.duration_s.observe(time.monotonic() - arrived_s)
            self._metrics.finished(outcome)

    def _count_open(self, change: int) -> None:
        self._num_open += change
        self._metrics.running.set(self._num_open)
        if self._num_open:
            self._idle.clear()
        else:
            self._idle.set()

    def _count_cached(self, generation: Generation) -> None:
        self._metrics.cached_tokens.inc(generation.usage().num_cached)

    async def _begin(self, plan: Plan, arrived_s: float, deadline_s: float) -> Generation:
        if not self._is_admitting:
            raise GoElsewhere(worker=self._client, reason="this frontend is ending")
        if len(plan.prompts) * plan.num_each > self._max_choices:
            raise InvalidRequest(field="n", reason=f"{self._max_choices} sequences at once are served here")
        try:
            async with asyncio.timeout(self._request_limit_s):
                model = await self.reader.load(plan.model)
                prompts = [await self.reader.tokens(model, prompt) for prompt in plan.prompts]
                manner = find_manner(plan, model, prompts[0])
                if manner.constraint is not None:
                    await self._trials.check(manner.constraint)
        except TimeoutError as error:
            raise DeadlineExceeded(what="the request", limit_s=self._request_limit_s) from error
        for prompt, tokens in zip(plan.prompts, prompts, strict=True):
            _check_prompt(model, prompt, tokens, plan)
        _check_bias(model, plan.sampling)
        return self._send(AnswerOrder(plan, model, manner, Waker(), arrived_s, deadline_s), prompts)

    def _send(self, order: AnswerOrder, prompts: list[Sequence[int]]) -> Generation:
        choices: list[TextChoice] = []
        try:
            for prompt, tokens in zip(order.plan.prompts, prompts, strict=True):
                self._choices.begin(choices, order, tokens, prompt if isinstance(prompt, str) else None)
        except KvmeshError:
            Generation(choices, order.waker).close()
            raise
        return Generation(choices, order.waker)


def _check_prompt(model: ServedModel, prompt: Prompt, tokens: Sequence[int], plan: Plan) -> None:
    """
    Raises:
        InvalidRequest: no token, one that the model does not have, or more than could be told of.
        PromptTooLong: no room for an answer is left.
    """
    if not tokens:
        raise InvalidRequest(field=plan.prompt_field, reason="it has no tokens")
    if len(tokens) >= model.card.context_tokens:
        numbers = {"num_tokens": len(tokens), "limit_tokens": model.card.context_tokens}
        raise PromptTooLong(field=plan.prompt_field, **numbers)
    vocab_size = model.card.vocab_size
    # a look at each of 100,000 tokens holds up the loop: not at those that are surely the model's
    if isinstance(prompt, list) or model.text.tokenizer.vocab_size > vocab_size:
        check_tokens(tokens, vocab_size, plan.prompt_field)
    field = "prompt_logprobs" if plan.sampling.prompt_logprobs is not None else "logprobs"
    check_scores(num_prompt_best(plan), len(tokens), field)


def _check_bias(model: ServedModel, sampling: Sampling) -> None:
    """Raises InvalidRequest: a token that the model does not have."""
    check_tokens(sampling.logit_bias, model.card.vocab_size, "logit_bias")
