"""LangChain's chat model for OpenAI's API: whole, streamed, several at once, and structured."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import httpx
import pytest
import uvloop
from pydantic import BaseModel

from tests.mesh.running_mesh import RunningMesh

ASK = "What is a mesh of small services for?"


class Place(BaseModel):
    """Where something is."""

    city: Literal["Rome", "Seoul"]


@pytest.fixture(scope="module")
def make_chat(mesh: RunningMesh, model: str) -> Callable[..., Any]:
    from langchain_openai import ChatOpenAI  # takes a second

    return partial(
        ChatOpenAI,
        model=model,
        base_url=f"{mesh.url}/v1",
        api_key="none",
        max_tokens=60,
        seed=3,
        max_retries=0,
        timeout=60,
    )


async def ask_asynchronously(make_chat: Callable[..., Any]) -> str:
    async with httpx.AsyncClient() as http:  # else LangChain keeps one of its own, which nobody closes
        reply = await make_chat(http_async_client=http).ainvoke(ASK)
    content: str = reply.content
    return content


def test_an_answer_is_the_same_whole_streamed_and_asynchronous(make_chat: Callable[..., Any]) -> None:
    chat = make_chat()
    whole = chat.invoke(ASK)
    assert whole.content
    assert "".join(chunk.content for chunk in chat.stream(ASK)) == whole.content
    assert uvloop.run(ask_asynchronously(make_chat)) == whole.content
    assert whole.usage_metadata["output_tokens"] <= 60
    assert whole.response_metadata["finish_reason"] in ("stop", "length")


def test_several_choices_and_structured_answers_come_back_as_such(make_chat: Callable[..., Any]) -> None:
    chat = make_chat()
    from langchain_core.messages import HumanMessage

    generated = chat.generate([[HumanMessage(ASK)]], n=2)
    assert len(generated.generations[0]) == 2
    structured = chat.with_structured_output(Place, method="json_schema").invoke(ASK)
    assert isinstance(structured, Place)
