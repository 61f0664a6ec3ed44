"""An answer in tokens as JSON: chunks of a stream, and a whole one."""

from collections.abc import Sequence

import msgspec

from frontend.events import to_event
from frontend.form import WholeChoice
from frontend.generation import Usage
from frontend.openai.forms import AnswerHead
from frontend.shown_tokens import ShownToken
from frontend.text_choice import ChoiceFacts

_encode = msgspec.json.Encoder().encode


class TokenLogprob(msgspec.Struct, frozen=True):
    """Of one token; `top` are those of the likeliest in its place, by their ids."""

    logprob: float
    rank: int
    top: dict[int, float]


class TokenChoiceObject(msgspec.Struct, frozen=True):
    index: int
    tokens: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: str | None


class TokenUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class TokenAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`kvmesh`: facts of each choice that has ended, if they were asked for."""

    object: str
    id: str
    created: int
    model: str
    choices: list[TokenChoiceObject]
    usage: TokenUsage | None = None
    kvmesh: list[ChoiceFacts] | None = None


class TokenForm:
    """`shows_scores`: log-probabilities were asked for."""

    def __init__(self, head: AnswerHead, *, shows_scores: bool) -> None:
        self._head = head
        self._shows_scores = shows_scores

    def opening(self, index: int) -> bytes:
        return b""

    def text(self, index: int, text: str, tokens: Sequence[ShownToken]) -> bytes:
        return self._event([self._choice(index, tokens, None)])

    def finish(self, index: int, finish: str, facts: ChoiceFacts) -> bytes:
        return self._event([self._choice(index, (), finish)], facts=[facts])

    def usage(self, usage: Usage) -> bytes:
        return self._event([], usage=_usage(usage)) if self._head.shows_usage else b""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        ended = [self._choice(each.index, each.tokens or (), each.finish) for each in choices]
        facts = [choice.facts for choice in choices]
        return _encode(self._answer("tokens", ended, usage=_usage(usage), facts=facts))

    def _choice(self, index: int, tokens: Sequence[ShownToken], finish: str | None) -> TokenChoiceObject:
        scores = [_logprob(token) for token in tokens] if self._shows_scores else None
        return TokenChoiceObject(index, [token.own.token for token in tokens], scores, finish)

    def _event(
        self,
        choices: list[TokenChoiceObject],
        *,
        usage: TokenUsage | None = None,
        facts: list[ChoiceFacts] | None = None,
    ) -> bytes:
        return to_event(_encode(self._answer("tokens.chunk", choices, usage=usage, facts=facts)))

    def _answer(
        self,
        kind: str,
        choices: list[TokenChoiceObject],
        *,
        usage: TokenUsage | None,
        facts: list[ChoiceFacts] | None,
    ) -> TokenAnswer:
        return TokenAnswer(
            object=kind,
            id=f"tok-{self._head.request}",
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            usage=usage,
            kvmesh=facts if self._head.shows_facts else None,
        )


def _logprob(token: ShownToken) -> TokenLogprob:
    top = {each.token: each.logprob for each in token.best}
    return TokenLogprob(token.own.logprob, token.own.rank, top)


def _usage(usage: Usage) -> TokenUsage:
    total = usage.num_prompt + usage.num_out
    return TokenUsage(usage.num_prompt, usage.num_out, total, usage.num_cached)
