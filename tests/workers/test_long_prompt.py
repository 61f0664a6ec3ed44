"""A prompt that is read in slices is what it would be at once, and the loop turns meanwhile."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.blockhash import block_hashes, block_salt
from proto.cards import KvClass, ModelCard, TextFiles
from proto.errors import InvalidRequest
from proto.requests import GenerateRequest, Sampling, Stopping
from proto.tokens import pack_tokens
from workers.long_prompt import LONG_BYTES, is_long, pack_first, read_prompt
from workers.request_spec import plan_sequence

KV_CLASS = KvClass("digest", "float32", 4)
CARD = ModelCard("m", KV_CLASS, TextFiles(""), 2**20, 1000, [2])


def request_of(prompt: list[int], generated: list[int]) -> GenerateRequest:
    return GenerateRequest(
        request="r",
        attempt=0,
        model="m",
        client="c",
        sampling=Sampling(),
        stopping=Stopping(len(generated) + 9),
        deadline_s=1.0,
        offset=len(generated),
        salt="tenant",
        prompt=pack_tokens(prompt),
        generated=pack_tokens(generated),
    )


@given(st.integers(1, 5000), st.integers(0, 1100), st.integers(0, 999))
def test_read_in_slices_a_prompt_is_what_it_is_at_once(num: int, num_more: int, first: int) -> None:
    tokens = [(first + 7 * place) % 1000 for place in range(num + num_more)]
    request = request_of(tokens[:num], tokens[num:])
    prompt = asyncio.run(read_prompt(request, KV_CLASS))
    assert prompt.tokens == tokens
    assert prompt.hashes == block_hashes(pack_tokens(tokens), 4, block_salt("digest", "tenant"))
    spec, at_once = plan_sequence(request, CARD, prompt), plan_sequence(request, CARD)
    assert spec.hashes == prompt.hashes
    assert (spec.tokens, spec.num_prompt, spec.highest_token) == (
        at_once.tokens,
        at_once.num_prompt,
        at_once.highest_token,
    )


def test_the_loop_turns_for_every_thousand_tokens_of_a_long_prompt() -> None:
    num_turns = 0

    async def count_turns() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    async def read() -> None:
        async with asyncio.TaskGroup() as tasks:
            counting = tasks.create_task(count_turns(), name="turns")
            await read_prompt(request_of([1] * 100_000, []), KV_CLASS)
            counting.cancel()

    asyncio.run(read())
    assert num_turns >= 97


@given(st.lists(st.integers(0, 999), min_size=1), st.lists(st.integers(0, 999)), st.data())
def test_the_first_of_a_sequences_tokens_are_packed_whoever_generated_them(
    prompt: list[int], generated: list[int], data: st.DataObject
) -> None:
    tokens = prompt + generated + data.draw(st.lists(st.integers(0, 999)), label="since")
    end = data.draw(st.integers(0, len(tokens)), label="end")
    assert pack_first(end, request_of(prompt, generated), tokens) == pack_tokens(tokens[:end])


def test_what_is_long_counts_what_was_generated_too() -> None:
    most = LONG_BYTES // 4 - 1
    assert not is_long(request_of([1] * most, []))
    assert is_long(request_of([1] * most, [1]))


@pytest.mark.parametrize("field", ["prompt", "generated"])
def test_bytes_that_are_no_tokens_are_refused(field: str) -> None:
    request = msgspec.structs.replace(request_of([1], []), **{field: b"12345"})
    with pytest.raises(InvalidRequest, match=field):
        asyncio.run(read_prompt(request, KV_CLASS))
