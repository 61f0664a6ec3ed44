"""A request's prompt as block hashes: the worker's own, computed without holding up the loop."""

import asyncio

import msgspec
import numpy as np

from proto.blockhash import block_hashes, block_salt
from proto.cards import KvClass
from proto.requests import GenerateRequest, Sampling, Stopping
from proto.tokens import pack_tokens
from router.hashed_prompt import hash_prompt
from router.kv_index import block_keys

KV = KvClass("digest", "float32", 16)


def a_request(num_tokens: int, *, num_generated: int = 0, salt: str = "") -> GenerateRequest:
    tokens = list(range(num_tokens + num_generated))
    return GenerateRequest(
        "r",
        1,
        "m",
        "c",
        pack_tokens(tokens[:num_tokens]),
        Sampling(),
        Stopping(8),
        deadline_s=1.0,
        generated=pack_tokens(tokens[num_tokens:]),
        salt=salt,
    )


def test_the_hashes_are_those_that_the_worker_computes() -> None:
    hashed = asyncio.run(hash_prompt(a_request(10_005, num_generated=10, salt="tenant"), KV))
    expected = block_hashes(pack_tokens(range(10_015)), 16, block_salt("digest", "tenant"))
    assert hashed.hashes == b"".join(expected)
    assert hashed.keys.tolist() == block_keys(hashed.hashes).tolist()
    assert hashed.num_tokens == 10_015


def test_a_hit_leaves_one_token_to_compute() -> None:
    hashed = asyncio.run(hash_prompt(a_request(64), KV))
    assert hashed.hit_tokens(np.array([0, 3, 4])).tolist() == [0, 48, 63]


def test_nothing_is_a_hit_where_the_logits_of_the_prompt_are_wanted() -> None:
    scored = msgspec.structs.replace(a_request(64), sampling=Sampling(prompt_logprobs=0))
    later = msgspec.structs.replace(scored, offset=1, generated=pack_tokens([7]))
    for request, expected in ((scored, 0), (later, 64)):
        hashed = asyncio.run(hash_prompt(request, KV))
        assert hashed.hit_tokens(np.array([4])).tolist() == [expected]


def test_a_prompt_under_a_block_has_no_hash() -> None:
    assert asyncio.run(hash_prompt(a_request(15), KV)).keys.tolist() == []


def test_the_loop_turns_while_a_long_prompt_is_hashed() -> None:
    async def body() -> int:
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        await hash_prompt(a_request(65_536), KV)
        return turns

    assert asyncio.run(body()) >= 16
