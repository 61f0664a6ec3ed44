"""LiteLLM calls any server of OpenAI's API, by its synchronous side and by its other one."""

import asyncio
import importlib
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.mesh.running_mesh import RunningMesh

ASK = [{"role": "user", "content": "What is a mesh of small services for?"}]


@pytest.fixture(scope="module")
def litellm() -> Iterator[ModuleType]:
    """Imported late: it takes seconds, and would ask the network for the prices of models."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        warnings.simplefilter("ignore", DeprecationWarning)  # what it says of itself
        yield importlib.import_module("litellm")


@pytest.fixture(autouse=True)
def event_loop() -> Iterator[None]:
    """Its synchronous side asks for the thread's event loop, and makes one that it never closes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def call(mesh: RunningMesh, model: str) -> dict[str, Any]:
    return {
        "model": f"openai/{model}",
        "messages": ASK,
        "api_base": f"{mesh.url}/v1",
        "api_key": "none",
        "max_tokens": 12,
        "seed": 3,
        "num_retries": 0,
    }


def test_an_answer_is_the_same_whole_and_streamed(litellm: ModuleType, call: dict[str, Any]) -> None:
    whole = litellm.completion(**call)
    chunks = list(litellm.completion(**call, stream=True, stream_options={"include_usage": True}))
    text = whole.choices[0].message.content
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert whole.usage.completion_tokens == 12
    assert chunks[-1].usage.completion_tokens == 12


def test_its_asynchronous_side_says_the_same(litellm: ModuleType, call: dict[str, Any]) -> None:
    """In a loop of its own; what it leaves behind there, to log by, ends with the loop."""

    async def body() -> tuple[Any, list[Any]]:
        whole = await litellm.acompletion(**call)
        chunks = [chunk async for chunk in await litellm.acompletion(**call, stream=True)]
        await litellm.close_litellm_async_clients()
        return whole, chunks

    whole, chunks = asyncio.run(body())
    text = litellm.completion(**call).choices[0].message.content
    assert whole.choices[0].message.content == text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text


def test_a_refusal_is_the_librarys_own_error(litellm: ModuleType, call: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="n: "):
        litellm.completion(**{**call, "n": 1000})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**call, "model": "openai/nope"})
