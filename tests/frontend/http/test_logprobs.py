"""Log-probabilities in OpenAI's shapes: streamed and whole alike, each with the text of its token."""

from typing import Any

import pytest
import uvloop
from openai.types.chat import ChatCompletionMessageParam

from tests.frontend.conftest import MODEL, Serve, Served, events, says
from tests.frontend.scripted_mesh import Script

TEXT = "The capital is Paris. Sch\u00f6ne W\u00f6rter: \u65e5\u672c \U0001f469 end."
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What?"}]


def tokens_of(served: Served, text: str) -> list[int]:
    return served.tokenizer.encode(text, add_special_tokens=False)


def logprob(token: int) -> Any:
    """What a scripted worker says of it."""
    return pytest.approx(-token / 100, abs=1e-5)


@pytest.mark.parametrize("per_frame", [1, 7])
def test_a_chat_tells_of_every_token_streamed_and_whole_alike(
    serve: Serve, tokenizer_json: bytes, per_frame: int
) -> None:
    async def body() -> None:
        script = Script(says(TEXT, tokenizer_json), per_frame=per_frame, drop={4})
        async with serve({"w0": script}) as served:
            chats = served.openai.chat.completions
            whole = await chats.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=2)
            stream = await chats.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=2, stream=True)
            chunks = [chunk.choices[0] async for chunk in stream]
            tokens = tokens_of(served, TEXT)
            spelling = served.tokenizer.token_bytes
        told = whole.choices[0].logprobs
        assert told is not None
        assert told.content is not None
        assert [bytes(each.bytes or []) for each in told.content] == [spelling(token) for token in tokens]
        assert [each.logprob for each in told.content] == [logprob(token) for token in tokens]
        assert [best.logprob for best in told.content[0].top_logprobs] == [logprob(10), logprob(11)]
        assert [best.token for best in told.content[0].top_logprobs] == ["(", ")"]
        streamed = [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content or []]
        assert streamed == told.content
        assert (
            "".join(chunk.delta.content or "" for chunk in chunks) == TEXT == whole.choices[0].message.content
        )
        seen, spelled = "", b""
        for chunk in chunks:  # every token comes with the piece of text that completes it
            seen += chunk.delta.content or ""
            spelled += b"".join(
                bytes(each.bytes or []) for each in (chunk.logprobs and chunk.logprobs.content) or []
            )
            assert seen == spelled.decode()

    uvloop.run(body())


def test_a_completion_tells_of_every_token_and_where_it_stands(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(TEXT, tokenizer_json))}) as served:
            client = served.openai.completions
            whole = await client.create(model=MODEL, prompt="Hello", logprobs=2)
            stream = await client.create(model=MODEL, prompt="Hello", logprobs=2, stream=True)
            parts = [chunk.choices[0].logprobs async for chunk in stream if chunk.choices[0].logprobs]
            few = await client.create(model=MODEL, prompt="Hello", logprobs=0)
            tokens = tokens_of(served, TEXT)
        told = whole.choices[0].logprobs
        assert told is not None
        assert told.tokens is not None and told.text_offset is not None
        assert told.token_logprobs == [logprob(token) for token in tokens]
        for name, start, best in zip(told.tokens, told.text_offset, told.top_logprobs or [], strict=True):
            assert name.startswith("bytes:\\x") or TEXT.startswith(name, start)
            assert {"(", ")", name} == best.keys()
        parted = [name for name in told.tokens if name.startswith("bytes:")]
        assert len(parted) == len("\u65e5\u672c\U0001f469".encode()), "one byte each"
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [each for part in parts for each in getattr(part, field)] == getattr(told, field)
        assert few.choices[0].logprobs is not None
        assert [list(best) for best in few.choices[0].logprobs.top_logprobs or []] == [
            [name] for name in told.tokens
        ]

    uvloop.run(body())


@pytest.mark.parametrize("streams", [False, True])
def test_tokens_that_a_stop_cuts_off_are_not_told_of(
    serve: Serve, tokenizer_json: bytes, streams: bool
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(TEXT, tokenizer_json))}) as served:
            reply = await served.chat(logprobs=True, stop=["is Paris"], stream=streams)
            early = await served.chat(logprobs=True, stop=["capital"], min_tokens=2)
            late = await served.chat(logprobs=True, stop=["end"], min_tokens=3)
            tokens = tokens_of(served, "The capital is")
            spelling = served.tokenizer.token_bytes
        shown = b"The capital "
        told = b"".join(_told(reply.text, streams=streams))
        assert told.startswith(shown)
        assert len(told) - len(shown) < len(spelling(tokens[-1])), "a token that is cut is the last"
        assert "The capital is" in early.json()["choices"][0]["message"]["content"]
        assert late.json()["choices"][0]["message"]["content"] == TEXT.removesuffix("end.")
        assert late.json()["choices"][0]["finish_reason"] == "stop"

    uvloop.run(body())


def _told(body: str, *, streams: bool) -> list[bytes]:
    """The bytes of the tokens that are told of."""
    bodies = events(body)[:-1] if streams else events(body)
    told = [each["choices"][0]["logprobs"] for each in bodies]
    return [bytes(token["bytes"]) for part in told if part for token in part["content"]]


def test_who_does_not_ask_is_told_nothing(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(TEXT, tokenizer_json))}) as served:
            for fields in ({}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}):
                assert (await served.chat(**fields)).json()["choices"][0]["logprobs"] is None
                assert served.mesh.routed[-1].sampling.logprobs is None
            assert "prompt_logprobs" not in (await served.chat()).json()

    uvloop.run(body())


def test_prompts_are_told_of_where_vllm_tells_of_them(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [50, 2])}) as served:
            chat = (await served.chat(prompt_logprobs=1)).json()["prompt_logprobs"]
            asked = {"model": MODEL, "prompt": [[40, 60, 10], [45]], "prompt_logprobs": 1}
            reply = await served.http.post("/v1/completions", json=asked)
        first, second = (choice["prompt_logprobs"] for choice in reply.json()["choices"])
        assert first == [
            None,
            {
                "10": {"logprob": logprob(10), "rank": 1, "decoded_token": "("},
                "60": {"logprob": logprob(60), "rank": 1 + 60 % 7, "decoded_token": "Z"},
            },
            {"10": {"logprob": logprob(10), "rank": 1 + 10 % 7, "decoded_token": "("}},
        ]
        assert second == [None]
        assert chat[0] is None
        assert len(chat) > 1

    uvloop.run(body())


def test_a_worker_that_tells_nothing_ends_the_answer_with_an_error(
    serve: Serve, tokenizer_json: bytes
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(TEXT, tokenizer_json), tells=False)}) as served:
            reply = await served.chat(logprobs=True)
        assert reply.status_code == 500
        assert "log-probability" in reply.json()["error"]["message"]

    uvloop.run(body())
