"""The choices of an answer: a sequence each, those of one prompt behind the first of them."""

import secrets
import time
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from frontend.choice_meter import ChoiceMeter
from frontend.models import ServedModel
from frontend.parsing.speech import Manner
from frontend.plan import Plan
from frontend.requests.stream_hub import StreamHub
from frontend.requests.waker import Waker
from frontend.shown_prompt import ShownPrompt
from frontend.text_choice import ChoiceRules, TextChoice
from frontend.token_choice import TokenChoice
from frontend.traffic import Traffic
from proto.names import new_id
from proto.requests import MAX_SEED, GenerateRequest, Stopping
from proto.tokens import pack_tokens
from services.metrics import FrontendMetrics


class AnswerOrder(msgspec.Struct, frozen=True):
    """One call on its way. Units: `arrived_s` and `deadline_s` on the monotonic clock."""

    plan: Plan
    model: ServedModel
    manner: Manner
    waker: Waker
    arrived_s: float
    deadline_s: float


class ChoiceMaker:
    """Sends the sequences of calls. Belongs to one event loop."""

    def __init__(self, client: str, hub: StreamHub, metrics: FrontendMetrics, traffic: Traffic) -> None:
        self._client = client
        self._hub = hub
        self._metrics = metrics
        self._traffic = traffic

    def begin(
        self, choices: list[TextChoice], order: AnswerOrder, tokens: Sequence[int], text: str | None
    ) -> None:
        """Adds all choices of one prompt to `choices`. `text` is the prompt where it came as such.

        Mutates: `choices`, as far as it came when this raises.

        Raises:
            Overloaded: too many sequences are live.
        """
        prompt = ShownPrompt(order.model.text.tokenizer, tokens, text)
        seed = secrets.randbelow(MAX_SEED) if order.plan.seed is None else order.plan.seed & MAX_SEED
        leader: TextChoice | None = None
        for number in range(order.plan.num_each):
            choice = self._begin(len(choices), order, prompt, tokens, seed_of(seed, number), leader)
            choices.append(choice)
            leader = leader or choice
        self._metrics.tokens_in.inc(len(tokens))

    def _begin(
        self,
        index: int,
        order: AnswerOrder,
        prompt: ShownPrompt,
        tokens: Sequence[int],
        seed: int,
        leader: TextChoice | None,
    ) -> TextChoice:
        rules = _rules(order)
        request = self._request(order, tokens, seed, is_leader=leader is None)
        awaited = leader.live if leader is not None and _shares_much(order, tokens) else None
        kind = TokenChoice if order.plan.tells_tokens else TextChoice
        return kind(
            index,
            self._hub.begin(request, rules.stop_tokens, order.waker, awaited),
            self._hub,
            order.model.text.tokenizer,
            prompt,
            rules,
            ChoiceMeter(order.arrived_s, self._metrics, self._traffic.begin(order.plan.model, len(tokens))),
            leader,
            order.manner,
        )

    def _request(
        self, order: AnswerOrder, tokens: Sequence[int], seed: int, *, is_leader: bool
    ) -> GenerateRequest:
        plan, card = order.plan, order.model.card
        room = card.context_tokens - len(tokens)
        wanted = room if plan.max_tokens is None else max(1, plan.max_tokens)
        scores = num_prompt_best(plan) if is_leader else None
        return GenerateRequest(
            request=new_id(),
            attempt=0,
            model=plan.model,
            client=self._client,
            prompt=pack_tokens(tokens),
            sampling=msgspec.structs.replace(plan.sampling, seed=seed, prompt_logprobs=scores),
            stopping=Stopping(min(wanted, room), list(plan.stop_tokens), plan.ignore_eos, plan.min_tokens),
            deadline_s=max(0.001, order.deadline_s - time.monotonic()),
            salt=plan.salt,
            priority=plan.priority,
            wanted_worker=plan.wanted_worker,
            constraint=order.manner.constraint,
        )


def seed_of(seed: int, number: int) -> int:
    """Of choice `number` of a prompt: the first one is what it would be alone, and no two are alike."""
    if number == 0:
        return seed
    digest = blake2b(b"%d/%d" % (seed, number), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_SEED


def num_prompt_best(plan: Plan) -> int | None:
    """How many alternatives workers are to tell of with each token of a prompt; None: nothing of them."""
    asked = [plan.sampling.prompt_logprobs, plan.sampling.logprobs if plan.echoes else None]
    return max((number for number in asked if number is not None), default=None)


def _shares_much(order: AnswerOrder, tokens: Sequence[int]) -> bool:
    """Whether a choice is better sent once its leader's prompt has been read: a cache holds full blocks, and
    what the prompt's tokens are worth is computed once."""
    return len(tokens) > order.model.card.kv_class.block_size or num_prompt_best(order.plan) is not None


def _rules(order: AnswerOrder) -> ChoiceRules:
    plan = order.plan
    ends = () if plan.ignore_eos else order.model.card.eos_tokens
    return ChoiceRules(
        stops=plan.stops,
        stop_tokens=frozenset((*ends, *plan.stop_tokens)),
        min_tokens=plan.min_tokens,
        num_best=plan.sampling.logprobs,
        num_prompt_best=plan.sampling.prompt_logprobs,
        echoes=plan.echoes,
        is_silent=plan.max_tokens == 0,
    )
