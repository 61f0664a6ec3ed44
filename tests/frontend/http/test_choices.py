"""Several choices of one prompt, and answers that begin with their prompt."""

import asyncio
from typing import Any

import pytest
import uvloop
from openai.types.chat import ChatCompletionMessageParam

from frontend.choices import seed_of
from proto.requests import GenerateRequest
from proto.tokens import unpack_tokens
from tests.frontend.conftest import MODEL, Serve, Served, events, says
from tests.frontend.scripted_mesh import Script

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
LONG = list(range(40, 80))  # more than a block
SHORT = [40, 41, 42]
HELLO = "Hello 日本 👩‍👩‍👧"


def by_seed(request: GenerateRequest) -> list[int]:
    """An answer that tells choices apart."""
    return [60 + request.sampling.seed % 40, 60 + (request.sampling.seed >> 8) % 40, 2]


async def complete(served: Served, **fields: Any) -> Any:
    reply = await served.http.post("/v1/completions", json={"model": MODEL, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def complete_streamed(served: Served, **fields: Any) -> dict[int, dict[str, Any]]:
    """What each choice of a stream comes to."""
    reply = await served.http.post("/v1/completions", json={"model": MODEL, "stream": True, **fields})
    found = events(reply.text)
    assert found[-1] == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for choice in (event["choices"][0] for event in found[:-1]):
        joined = choices.setdefault(choice["index"], {"text": "", "finishes": [], "logprobs": {}})
        joined["text"] += choice["text"]
        joined["finishes"] += [choice["finish_reason"]] if choice["finish_reason"] else []
        for name, values in (choice["logprobs"] or {}).items():
            joined["logprobs"].setdefault(name, []).extend(values)
    return choices


def test_choices_are_sequences_with_seeds_of_their_own_and_the_first_is_what_it_would_be_alone(
    serve: Serve,
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(by_seed)}) as served:
            chats = served.openai.chat.completions
            alone = await chats.create(model=MODEL, messages=ASK, seed=7)
            whole = await chats.create(model=MODEL, messages=ASK, seed=7, n=4)
            stream = await chats.create(model=MODEL, messages=ASK, seed=7, n=4, stream=True)
            texts, finishes = [""] * 4, [""] * 4
            async for chunk in stream:
                texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
                finishes[chunk.choices[0].index] += chunk.choices[0].finish_reason or ""
            seeds = [request.sampling.seed for request in served.mesh.routed]
            ids = {request.request for request in served.mesh.routed}
        assert seeds[0] == 7
        assert set(seeds[1:5]) == {seed_of(7, number) for number in range(4)}
        assert len(set(seeds)) == 4
        assert len(ids) == 9
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
        assert whole.choices[0].message.content == alone.choices[0].message.content
        assert [choice.message.content for choice in whole.choices] == texts
        assert len(set(texts)) == 4
        assert finishes == ["stop"] * 4
        assert whole.usage is not None and alone.usage is not None
        assert whole.usage.prompt_tokens == alone.usage.prompt_tokens, "a prompt counts once"
        assert whole.usage.completion_tokens == 4 * alone.usage.completion_tokens
        assert whole.usage.prompt_tokens_details == alone.usage.prompt_tokens_details

    uvloop.run(body())


def test_choices_of_several_prompts_stand_side_by_side(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda request: [60 + len(request.prompt) // 4, 2])}) as served:
            whole = await complete(served, prompt=[[5], [5, 6]], n=2, best_of=2)
            streamed = await complete_streamed(served, prompt=[[5], [5, 6]], n=2)
            texts = [served.tokenizer.token_bytes(60 + num).decode() for num in (1, 1, 2, 2)]
        assert [choice["text"] for choice in whole["choices"]] == texts
        assert [streamed[index]["text"] for index in range(4)] == texts
        assert whole["usage"]["prompt_tokens"] == 3

    uvloop.run(body())


@pytest.mark.parametrize(("prompt", "num_sent"), [(LONG, 1), (SHORT, 3)], ids=["long", "short"])
def test_choices_with_a_block_in_common_are_sent_once_the_first_has_read_it(
    serve: Serve, prompt: list[int], num_sent: int
) -> None:
    async def body() -> None:
        silent = Script(by_seed, stop_at=0)
        async with serve({"w0": silent}) as served:

            def sent(prompt: list[int]) -> set[str]:
                return {each.request for each in served.mesh.routed if unpack_tokens(each.prompt) == prompt}

            asking = asyncio.ensure_future(complete(served, prompt=prompt, n=3))
            await served.mesh.wait_until(lambda: bool(sent(prompt)))
            later = asyncio.ensure_future(complete(served, prompt=[5]))
            await served.mesh.wait_until(lambda: bool(sent([5])))  # what was to be sent before has been
            assert len(sent(prompt)) == num_sent
            asking.cancel()
            later.cancel()
            silent.stop_at = None
            assert len((await complete(served, prompt=prompt, n=3))["choices"]) == 3
            assert len(sent(prompt)) == num_sent + 3

    uvloop.run(body())


def test_an_answer_begins_with_its_prompt_if_asked_for(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(" world", tokenizer_json))}) as served:
            ids = served.tokenizer.encode(HELLO, add_special_tokens=True)
            for prompt in (HELLO, ids):
                whole = await complete(served, prompt=prompt, echo=True, stop="rld", n=2)
                streamed = await complete_streamed(served, prompt=prompt, echo=True, stop="rld", n=2)
                assert [choice["text"] for choice in whole["choices"]] == [f"{HELLO} wo"] * 2
                assert [streamed[index]["text"] for index in range(2)] == [f"{HELLO} wo"] * 2
                assert [streamed[index]["finishes"] for index in range(2)] == [["stop"]] * 2

    uvloop.run(body())


def test_an_echo_tells_of_every_token_but_the_first_where_it_stands(
    serve: Serve, tokenizer_json: bytes
) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(" world", tokenizer_json))}) as served:
            whole = (await complete(served, prompt=HELLO, echo=True, logprobs=1, n=2))["choices"]
            streamed = await complete_streamed(served, prompt=HELLO, echo=True, logprobs=1, n=2)
            tokens = served.tokenizer.encode(f"{HELLO}", add_special_tokens=True)
            tokens += served.tokenizer.encode(" world", add_special_tokens=False)
            asked = [request.sampling.prompt_logprobs for request in served.mesh.routed]
        assert sorted(asked, key=str) == [1, 1, None, None], "a prompt is told of once for all its choices"
        for choice in whole:
            told = choice["logprobs"]
            assert choice["text"] == f"{HELLO} world"
            assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
            assert told["token_logprobs"][1:] == [
                pytest.approx(-token / 100, abs=1e-5) for token in tokens[1:]
            ]
            assert all("(" in best for best in told["top_logprobs"][1:])
            for name, start in zip(told["tokens"], told["text_offset"], strict=True):
                assert name.startswith("bytes:") or choice["text"].startswith(name, start)
            assert streamed[choice["index"]]["logprobs"] == told
            assert "prompt_logprobs" not in choice

    uvloop.run(body())


def test_a_prompt_alone_can_be_told_of(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(" world", tokenizer_json))}) as served:
            whole = await complete(served, prompt=[[40, 60, 10], [45]], echo=True, logprobs=0, max_tokens=0)
            both = await complete(served, prompt=[40, 60], echo=True, logprobs=0, prompt_logprobs=2, n=2)
            last = served.mesh.routed[-2:]
            texts = [served.tokenizer.token_bytes(token).decode() for token in (40, 60, 10, 45)]
        assert [choice["text"] for choice in whole["choices"]] == ["".join(texts[:3]), texts[3]]
        assert [choice["finish_reason"] for choice in whole["choices"]] == ["length", "length"]
        assert [len(choice["logprobs"]["tokens"]) for choice in whole["choices"]] == [3, 1]
        assert whole["usage"]["completion_tokens"] == 0
        assert [request.sampling.prompt_logprobs for request in last] == [2, None]
        for choice in both["choices"]:
            assert all(len(best) == 1 for best in choice["logprobs"]["top_logprobs"][1:])
            assert choice["prompt_logprobs"][0] is None
            assert set(choice["prompt_logprobs"][1]) == {"10", "11", "60"}

    uvloop.run(body())


def test_an_echo_is_none_of_the_tokens_that_stop_or_count(serve: Serve, tokenizer_json: bytes) -> None:
    async def body() -> None:
        async with serve({"w0": Script(says(" world", tokenizer_json))}) as served:
            whole = await complete(served, prompt="Hello", echo=True, stop=["Hello", "llo w"])
            prompt = unpack_tokens(served.mesh.routed[-1].prompt)
        assert whole["choices"][0]["text"] == "Hello world"
        assert whole["usage"]["prompt_tokens"] == len(prompt)

    uvloop.run(body())
