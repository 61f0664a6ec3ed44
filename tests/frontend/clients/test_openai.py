"""OpenAI's own client: whole, streamed, parsed, raw and asynchronous, and what it does when told to wait."""

import asyncio
from typing import Any, Literal

import pytest
import uvloop
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from proto.errors import KvmeshError, NoWorker, Overloaded
from tests.frontend.conftest import MODEL, Serve
from tests.frontend.scripted_mesh import Script
from tests.mesh.running_mesh import RunningMesh

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a mesh of small services for?"}]


class Place(BaseModel):
    city: Literal["Rome", "Seoul"]
    is_large: bool


def test_a_chat_is_the_same_whole_streamed_and_by_the_clients_own_reader(client: OpenAI, model: str) -> None:
    asked = {"model": model, "messages": ASK, "seed": 5, "extra_body": {"guided_regex": "[a-z ]{12,24}"}}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:  # type: ignore[arg-type]
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert whole.choices[0].message.content
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert final.usage is not None and whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens > 0
    assert events.count("content.done") == 1


def test_a_completion_of_several_prompts_and_choices_comes_whole(client: OpenAI, model: str) -> None:
    prompts: Any = ["One", [5, 6, 7]]
    reply = client.completions.create(
        model=model,
        prompt=prompts,
        n=2,
        max_tokens=4,
        seed=1,
        echo=True,
        logprobs=1,
        temperature=0,
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.choices[0].text.startswith("One")
    assert reply.choices[0].text == reply.choices[1].text, "at temperature 0 seeds say nothing"
    assert reply.choices[2].text == reply.choices[3].text
    told = reply.choices[0].logprobs
    assert told is not None and told.token_logprobs is not None and told.tokens is not None
    scores: list[Any] = told.token_logprobs
    assert scores[0] is None
    assert None not in scores[1:]


def test_choices_find_the_prefix_that_the_first_one_computed(client: OpenAI, model: str) -> None:
    prompt = list(range(40, 120))
    reply = client.completions.create(
        model=model, prompt=prompt, n=3, max_tokens=4, seed=1, extra_body={"kvmesh": True, "ignore_eos": True}
    )
    cached = [choice["cached_tokens"] for choice in reply.model_dump()["kvmesh"]["choices"]]
    assert cached[0] == 0
    assert all(num >= len(prompt) - 32 for num in cached[1:]), cached
    assert len({choice.text for choice in reply.choices}) > 1


def test_an_answer_is_parsed_into_a_model(client: OpenAI, model: str) -> None:
    reply = client.chat.completions.parse(model=model, messages=ASK, response_format=Place, max_tokens=200)
    assert isinstance(reply.choices[0].message.parsed, Place)


def test_raw_responses_carry_the_id_of_the_request_and_models_are_listed(client: OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=ASK, max_tokens=2, extra_headers={"x-request-id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse().choices[0].finish_reason == "length"
    assert [found.id for found in client.models.list()] == [model]


def test_many_streams_at_once_each_end_once(mesh: RunningMesh, model: str) -> None:
    async def one(client: AsyncOpenAI, seed: int) -> list[str]:
        stream = await client.chat.completions.create(
            model=model, messages=ASK, max_tokens=8, seed=seed, stream=True
        )
        return [reason async for chunk in stream if (reason := chunk.choices[0].finish_reason)]

    async def body() -> None:
        async with AsyncOpenAI(base_url=f"{mesh.url}/v1", api_key="none", timeout=60) as client:
            ends = await asyncio.gather(*(one(client, seed) for seed in range(16)))
        assert all(len(end) == 1 for end in ends)

    uvloop.run(body())


@pytest.mark.parametrize(
    "refusal",
    [NoWorker(model=MODEL), Overloaded(reason="the queue is full", retry_after_s=1)],
    ids=["503", "429"],
)
def test_a_refusal_for_now_is_tried_again_and_served(serve: Serve, refusal: KvmeshError) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [50, 2])}) as served:
            served.mesh.refusal = refusal
            patient = served.openai.with_options(max_retries=3)
            asking = asyncio.ensure_future(patient.chat.completions.create(model=MODEL, messages=ASK))
            await served.mesh.wait_until(lambda: bool(served.mesh.routed), 30)
            served.mesh.refusal = None
            reply = await asking
        assert reply.choices[0].finish_reason == "stop"
        assert len(served.mesh.routed) >= 2

    uvloop.run(body())
