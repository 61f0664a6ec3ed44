"""Tokens do not depend on where a prompt is prefilled, nor on what is cached where."""

import asyncio
from functools import partial
from typing import Any

import pytest

from proto.errors import error_class
from proto.requests import Refused, Sampling
from tests.workers import client_run
from tests.workers.conftest import BLOCK_SIZE, CONTEXT_TOKENS, REMOTE_MIN_TOKENS
from tests.workers.harness import Client, Fleet, random_prompt
from tests.workers.near_records import assert_near

BLOCK_BYTES = 4 * 2 * 4 * BLOCK_SIZE * 8 * 4
"""Of the tiny model: layers, K and V, heads, tokens, numbers a head, bytes a number."""


run_client = partial(client_run.run_client, idle=("prefill",))


@pytest.mark.parametrize(
    "num_tokens",
    [1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 2 * BLOCK_SIZE + 1, 500, CONTEXT_TOKENS - 8],
)
def test_a_prompt_gives_the_same_tokens_prefilled_anywhere_cold_and_warm(
    computing: Fleet, num_tokens: int
) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(num_tokens, seed=num_tokens)
        expected = (await client.generate("local", prompt)).tokens
        assert len(expected) == 8
        num_cached = (num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
        for worker in ("direct", "queued"):
            await client.wait_report("prefill", lambda report: report.num_jobs == 0)
            cold = await client.generate(worker, prompt)
            is_remote = num_tokens - 1 >= REMOTE_MIN_TOKENS
            assert cold.tokens == expected
            assert (cold.final.prefill, cold.final.cached_tokens) == ("remote" if is_remote else "local", 0)
            assert cold.final.prefill_worker == ("prefill" if is_remote else "")
            warm = await client.generate(worker, prompt)
            assert warm.tokens == expected
            assert (warm.final.prefill, warm.final.cached_tokens) == ("local", num_cached)
        await client.wait_rest("local", "direct", "queued", "prefill")

    run_client(computing, body)


@pytest.mark.parametrize("worker", ["local", "direct"])
def test_a_prompt_that_leaves_room_for_one_token_gives_one_and_a_longer_one_is_refused(
    computing: Fleet, worker: str
) -> None:
    async def body(client: Client) -> None:
        last = await client.generate(worker, random_prompt(CONTEXT_TOKENS - 1, seed=7))
        assert len(last.tokens) == 1
        assert last.final.finish == "length"
        reply, _ = await client.offer(worker, random_prompt(CONTEXT_TOKENS, seed=8))
        assert isinstance(reply, Refused)
        assert reply.fault.code == "context_length_exceeded"
        num_tokens = {"num_tokens": CONTEXT_TOKENS, "limit_tokens": CONTEXT_TOKENS}
        assert reply.fault.values == {"field": "prompt", **num_tokens}
        await client.wait_rest(worker, "prefill")

    run_client(computing, body)


def test_a_prefix_that_only_the_decode_worker_has_is_pulled(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        prefill = computing.worker("prefill")
        prompt = random_prompt(400, seed=11)
        for num_tokens in range(BLOCK_SIZE + 1, 6 * BLOCK_SIZE + 2, BLOCK_SIZE):
            local = await client.generate("direct", prompt[:num_tokens], max_tokens=1)
            assert local.final.prefill == "local"
        before = await asyncio.to_thread(prefill.metric, "kvmesh_kv_bytes_pulled_total")
        stream = await client.generate("direct", prompt)
        assert (stream.final.prefill, stream.final.cached_tokens) == ("remote", 6 * BLOCK_SIZE)
        assert stream.tokens == (await client.generate("local", prompt)).tokens
        after = await asyncio.to_thread(prefill.metric, "kvmesh_kv_bytes_pulled_total")
        assert after - before == 6 * BLOCK_BYTES
        await client.wait_rest("direct", "prefill")

    run_client(computing, body)


def test_a_prefix_that_only_the_prefill_worker_has_is_pushed_and_not_computed(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(300, seed=12)
        await client.generate("direct", prompt)
        prefill = computing.worker("prefill")
        steps = await asyncio.to_thread(prefill.metric, "kvmesh_engine_steps")
        stream = await client.generate("queued", prompt)
        assert (stream.final.prefill, stream.final.cached_tokens) == ("remote", 0)
        assert stream.tokens == (await client.generate("local", prompt)).tokens
        assert await asyncio.to_thread(prefill.metric, "kvmesh_engine_steps") - steps == 1

    run_client(computing, body)


@pytest.mark.parametrize(("num_here", "num_there"), [(6, 3), (3, 10)])
def test_of_two_prefixes_the_longer_is_used_and_only_what_it_has_more_is_pulled(
    computing: Fleet, num_here: int, num_there: int
) -> None:
    async def body(client: Client) -> None:
        prefill = computing.worker("prefill")
        prompt = random_prompt(400, seed=20 + num_here)
        there = await client.generate("queued", prompt[: num_there * BLOCK_SIZE + 1], max_tokens=1)
        assert there.final.prefill == "remote"
        for num_blocks in range(1, num_here + 1):
            await client.generate("direct", prompt[: num_blocks * BLOCK_SIZE + 1], max_tokens=1)
        pulled = await asyncio.to_thread(prefill.metric, "kvmesh_kv_bytes_pulled_total")
        computed = await asyncio.to_thread(prefill.metric, "kvmesh_computed_tokens")
        stream = await client.generate("direct", prompt)
        assert (stream.final.prefill, stream.final.cached_tokens) == ("remote", num_here * BLOCK_SIZE)
        assert stream.tokens == (await client.generate("local", prompt)).tokens
        pulled = await asyncio.to_thread(prefill.metric, "kvmesh_kv_bytes_pulled_total") - pulled
        computed = await asyncio.to_thread(prefill.metric, "kvmesh_computed_tokens") - computed
        assert pulled == max(0, num_here - num_there) * BLOCK_BYTES
        assert computed == 399 - max(num_here, num_there) * BLOCK_SIZE
        await client.wait_rest("direct", "queued", "prefill")

    run_client(computing, body)


def test_many_at_once_share_a_prefix_and_each_gets_its_own_tokens(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        shared = random_prompt(160, seed=13)
        prompts = [shared + random_prompt(20 * index + 3, seed=100 + index) for index in range(8)]
        expected = [(await client.generate("local", prompt)).tokens for prompt in prompts]
        streams = [
            await client.begin(("direct", "queued")[index % 2], prompt)
            for index, prompt in enumerate(prompts)
        ]
        for stream in streams:
            await client.finish(stream)
        assert [stream.tokens for stream in streams] == expected
        await client.wait_rest("local", "direct", "queued", "prefill")

    run_client(computing, body)


def test_a_request_goes_on_from_the_tokens_of_an_attempt_elsewhere(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(100, seed=14)
        sampling = Sampling(temperature=0.0, frequency_penalty=0.8, repetition_penalty=1.5, logprobs=1)
        fields = {"max_tokens": 12, "sampling": sampling}
        whole = await client.generate("local", prompt, **fields)
        rest = await client.generate(
            "direct", prompt, request="r", attempt=3, generated=whole.tokens[:5], **fields
        )
        assert rest.tokens == whole.tokens[5:]
        assert_near(rest.records, whole.records[5:])

    run_client(computing, body)


def test_seeded_samples_do_not_depend_on_the_place_of_prefill(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(200, seed=15)
        sampling = Sampling(
            1.0,
            top_p=0.9,
            top_k=50,
            seed=12345,
            presence_penalty=0.5,
            repetition_penalty=1.3,
            logit_bias={prompt[-1]: 4.0},
            logprobs=3,
        )
        here, direct, queued = [
            await client.generate(worker, prompt, sampling=sampling)
            for worker in ("local", "direct", "queued")
        ]
        assert here.tokens == direct.tokens == queued.tokens
        for there in (direct, queued):
            assert_near(there.records, here.records)

    run_client(computing, body)


def test_what_nobody_can_serve_is_refused_and_hurts_nobody(computing: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(40, seed=16)
        wrong: tuple[dict[str, Any], ...] = (
            {"sampling": Sampling(temperature=float("nan"))},
            {"sampling": Sampling(temperature=-1.0)},
            {"sampling": Sampling(top_p=0.0)},
            {"sampling": Sampling(top_k=-1)},
            {"sampling": Sampling(seed=-1)},
            {"sampling": Sampling(min_p=1.5)},
            {"sampling": Sampling(presence_penalty=float("nan"))},
            {"sampling": Sampling(frequency_penalty=1e9)},
            {"sampling": Sampling(repetition_penalty=0.0)},
            {"sampling": Sampling(logit_bias={512: 1.0})},
            {"sampling": Sampling(logit_bias={5: float("inf")})},
            {"sampling": Sampling(logprobs=21)},
            {"sampling": Sampling(prompt_logprobs=-1)},
            {"max_tokens": 0},
            {"deadline_s": 0.0},
            {"deadline_s": float("nan")},
            {"attempt": -1},
            {"request": "x" * 1000},
        )
        for fields in wrong:
            reply, stream = await client.offer("direct", prompt, **fields)
            assert isinstance(reply, Refused), fields
            assert error_class(reply.fault.code).status in (400, 504)
            assert stream.num_frames == 0
        reply, _ = await client.offer("direct", [512], epoch=1)
        assert isinstance(reply, Refused)
        reply, _ = await client.offer("direct", prompt, epoch=2)
        assert isinstance(reply, Refused)
        assert reply.fault.code == "go_elsewhere"
        reply, _ = await client.offer("prefill", prompt)
        assert isinstance(reply, Refused)
        assert reply.fault.code == "go_elsewhere"
        assert len((await client.generate("direct", prompt)).tokens) == 8
        await client.wait_rest("direct", "prefill")

    run_client(computing, body)
