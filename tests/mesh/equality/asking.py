"""What a client sees: a request over HTTP, its answer whole or streamed, as one struct."""

from collections.abc import Sequence

import httpx
import msgspec

from tests.mesh.equality.cells import Delivery
from tests.mesh.equality.rows import Endpoint


class Text(msgspec.Struct, frozen=True):
    """One choice."""

    text: str
    finish: str


class Answer(msgspec.Struct, frozen=True):
    """All that has to be the same everywhere."""

    choices: list[Text]
    num_prompt: int
    num_out: int


class Facts(msgspec.Struct, frozen=True):
    """What the mesh says of how it served a choice."""

    prefill: str
    attempts: int
    prompt_tokens: int
    cached_tokens: int


class Worth(msgspec.Struct, frozen=True):
    """What is told of a token: its log-probability and the likeliest ones in its place, the best first."""

    name: str
    logprob: float
    best: list[float]


class Heard(msgspec.Struct, frozen=True):
    """An answer, and how it came about. `worths` are those of each choice's tokens, `prompt` says of each of
    the prompt's but the first which could stand there, by id, where they were asked for."""

    answer: Answer
    num_cached: int
    facts: list[Facts]
    worths: list[list[Worth]]
    prompt: list[dict[int, float]]


class _Cached(msgspec.Struct):
    cached_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _Cached


class _Message(msgspec.Struct, frozen=True):
    content: str = ""


class _Alternative(msgspec.Struct):
    logprob: float


class _ChatToken(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list[_Alternative]


class _Logprobs(msgspec.Struct):
    """Of a chat its `content`, of a completion the rest."""

    content: list[_ChatToken] = []
    tokens: list[str] = []
    token_logprobs: list[float] = []
    top_logprobs: list[dict[str, float]] = []

    def worths(self) -> list[Worth]:
        of_chat = [
            Worth(each.token, each.logprob, [best.logprob for best in each.top_logprobs])
            for each in self.content
        ]
        columns = zip(self.tokens, self.token_logprobs, self.top_logprobs, strict=True)
        return of_chat + [
            Worth(name, logprob, sorted(best.values(), reverse=True)) for name, logprob, best in columns
        ]


PromptTokens = list[dict[int, _Alternative] | None]


class _Choice(msgspec.Struct):
    index: int
    finish_reason: str | None
    logprobs: _Logprobs | None = None
    prompt_logprobs: PromptTokens = []
    text: str = ""
    message: _Message = _Message()
    delta: _Message = _Message()

    @property
    def shown(self) -> str:
        return self.text + self.message.content + self.delta.content


class _Extension(msgspec.Struct):
    choices: list[Facts]


class _Body(msgspec.Struct):
    """A whole answer, or a chunk of one."""

    choices: list[_Choice]
    usage: _Usage | None = None
    kvmesh: _Extension | None = None
    prompt_logprobs: PromptTokens = []


_decode = msgspec.json.Decoder(_Body).decode


async def ask(
    http: httpx.AsyncClient, endpoint: Endpoint, body: dict[str, object], delivery: Delivery
) -> Heard:
    """
    Raises:
        AssertionError: no answer, or one that is not of OpenAI's form.
    """
    told = {**body, "kvmesh": True}
    if delivery is Delivery.STREAMED:
        told |= {"stream": True, "stream_options": {"include_usage": True}}
    response = await http.post(f"/v1/{endpoint}", json=told)
    assert response.status_code == 200, response.text
    if delivery is Delivery.WHOLE:
        return _join([_decode(response.content)])
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events.index("[DONE]") == len(events) - 1
    return _join([_decode(event) for event in events[:-1]])


def _join(bodies: Sequence[_Body]) -> Heard:
    """One answer of all its parts; each choice ends once, and usage is said once."""
    choices = [choice for body in bodies for choice in body.choices]
    texts, worths = [], []
    for index in range(1 + max(choice.index for choice in choices)):
        mine = [choice for choice in choices if choice.index == index]
        (finish,) = [choice.finish_reason for choice in mine if choice.finish_reason is not None]
        assert mine[-1].finish_reason == finish, "something came after the end"
        texts.append(Text("".join(choice.shown for choice in mine), finish))
        worths.append([worth for choice in mine if choice.logprobs for worth in choice.logprobs.worths()])
    (usage,) = [body.usage for body in bodies if body.usage is not None]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    answer = Answer(texts, usage.prompt_tokens, usage.completion_tokens)
    facts = [each for body in bodies if body.kvmesh is not None for each in body.kvmesh.choices]
    told = [*bodies[0].prompt_logprobs, *choices[0].prompt_logprobs]
    assert not told or told[0] is None, "nothing is before a prompt's first token"
    prompt = [{token: each.logprob for token, each in place.items()} for place in told if place]
    return Heard(answer, usage.prompt_tokens_details.cached_tokens, facts, worths, prompt)
