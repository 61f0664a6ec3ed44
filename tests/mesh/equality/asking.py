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


class Heard(msgspec.Struct, frozen=True):
    """An answer, and how it came about."""

    answer: Answer
    num_cached: int
    facts: list[Facts]


class _Cached(msgspec.Struct):
    cached_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _Cached


class _Message(msgspec.Struct, frozen=True):
    content: str = ""


class _Choice(msgspec.Struct):
    index: int
    finish_reason: str | None
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
    texts = []
    for index in range(1 + max(choice.index for choice in choices)):
        mine = [choice for choice in choices if choice.index == index]
        (finish,) = [choice.finish_reason for choice in mine if choice.finish_reason is not None]
        assert mine[-1].finish_reason == finish, "something came after the end"
        texts.append(Text("".join(choice.shown for choice in mine), finish))
    (usage,) = [body.usage for body in bodies if body.usage is not None]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    answer = Answer(texts, usage.prompt_tokens, usage.completion_tokens)
    facts = [each for body in bodies if body.kvmesh is not None for each in body.kvmesh.choices]
    return Heard(answer, usage.prompt_tokens_details.cached_tokens, facts)
