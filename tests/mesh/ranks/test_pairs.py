"""KV goes from a worker of some ranks to one of others, whatever happens meanwhile to either."""

import asyncio
import os
import signal

from proto.roles import Role
from services.process import EXIT_FAILED
from tests.mesh.ranks.grid_pair import (
    NUM_TRIES,
    PATIENT_S,
    GridPair,
    become,
    begin,
    begin_granted,
    move,
    prefill_elsewhere,
)
from tests.mesh.ranks.one_process import BLOCK_SIZE
from tests.services.waiting import wait_for
from tests.workers.harness import Client, random_prompt
from workers.roles.proof import are_gone

EXIT_CODES = {
    "loses a rank": EXIT_FAILED,
    "has a rank stopped": EXIT_FAILED,
    "loses its leader": -signal.SIGKILL,
    "is told to end": 0,
}
LONG = 1900
"""Tokens of a stream that does not end by itself while a test looks."""
NUM_MORE = 64
"""Tokens of a stream that are compared after it has moved."""
PULLED = "kvmesh_kv_bytes_pulled_total"


def test_a_prefix_that_only_the_decode_worker_has_is_pulled(pair: GridPair) -> None:
    async def body(client: Client) -> None:
        before = await pair.metric("prefill", PULLED)
        for seed in range(10, 10 + NUM_TRIES):
            prompt = random_prompt(400, seed)
            assert (await client.generate("decode", prompt[:17], max_tokens=1)).final.prefill == "local"
            stream = await client.generate("decode", prompt)
            assert stream.final.cached_tokens == BLOCK_SIZE
            assert stream.tokens == await pair.expected(prompt)
            if await pair.metric("prefill", PULLED) > before:
                return
        raise AssertionError("nothing was pulled")

    pair.run(body)


def test_a_cancel_in_mid_push_gives_every_block_back_on_both_sides(pair: GridPair) -> None:
    async def body(client: Client) -> None:
        for seed in range(20, 23):
            _, stream = await begin_granted(client, 1500, 100 * seed)
            await client.cancel(stream)
            await client.wait_rest("decode", "prefill")
        prompt = random_prompt(200, seed=23)
        assert (await client.generate("decode", prompt)).tokens == await pair.expected(prompt)

    pair.run(body)


def test_sequences_move_at_a_switch_of_roles_and_kv_goes_the_other_way_after_it(pair: GridPair) -> None:
    async def body(client: Client) -> None:
        await become(client, "prefill", Role.DECODE)
        pulled = await pair.metric("prefill", PULLED)
        prompt = random_prompt(100, seed=30)
        stream = await begin(client, "decode", prompt, max_tokens=LONG)
        switching = asyncio.ensure_future(become(client, "decode", Role.PREFILL))
        await client.wait(lambda: "decode" in client.wishes, PATIENT_S)
        moved = await move(client, stream, prompt, "prefill", max_tokens=LONG)
        await client.wait(lambda: moved.taken_over_at is not None, PATIENT_S)
        await client.cancel(stream)
        await client.wait(lambda: len(moved.tokens) >= NUM_MORE, PATIENT_S)
        await client.cancel(moved)
        tokens = stream.tokens[: moved.offset] + moved.tokens[:NUM_MORE]
        assert tokens == await pair.expected(prompt, len(tokens))
        assert await pair.metric("prefill", PULLED) > pulled
        await switching
        back, there = await prefill_elsewhere(client, "prefill", 300, seed=31)
        assert there.tokens == await pair.expected(back)
        await become(client, "decode", Role.DECODE)
        await become(client, "prefill", Role.PREFILL)
        await client.wait_rest("decode", "prefill")

    pair.run(body)


def test_a_worker_of_many_ranks_ends_as_a_whole_and_hurts_nobody_else(pair: GridPair) -> None:
    async def body(client: Client) -> None:
        if pair.pairing.prefill.num_ranks > 1:
            await lose_prefill(pair, client)
        else:
            await lose_decode(pair, client)

    pair.run(body)


async def lose_prefill(pair: GridPair, client: Client) -> None:
    """In mid-push: the decode worker does the prompt itself, and has its blocks back."""
    prompt, stream = await begin_granted(client, 1500, seed=40)
    await end_worker(pair, "prefill")
    await client.finish(stream, PATIENT_S)
    assert stream.tokens == await pair.expected(prompt)
    await client.wait_rest("decode", limit_s=PATIENT_S)


async def lose_decode(pair: GridPair, client: Client) -> None:
    """In mid-stream: the request goes on elsewhere, from the tokens that have come."""
    prompt = random_prompt(100, seed=41)
    stream = await begin(client, "decode", prompt, max_tokens=LONG)
    await client.wait(lambda: bool(stream.tokens), PATIENT_S)
    await end_worker(pair, "decode")
    await client.wait(lambda: stream.end is not None, PATIENT_S)
    await client.wait_rest("prefill", limit_s=PATIENT_S)
    await become(client, "prefill", Role.DECODE)
    before = {"request": stream.request, "attempt": 1, "generated": list(stream.tokens)}
    rest = await begin(client, "prefill", prompt, max_tokens=len(stream.tokens) + 16, **before)
    await client.finish(rest, PATIENT_S)
    tokens = stream.tokens + rest.tokens
    assert tokens == await pair.expected(prompt, len(tokens))


async def end_worker(pair: GridPair, worker: str) -> None:
    """It leaves the directory, and all of its processes end, whatever happens to one of them."""
    card = await pair.card(worker)
    last, first = card.followers[-1].pid, card.process.pid
    match pair.fate:
        case "loses a rank":
            os.kill(last, signal.SIGKILL)
        case "has a rank stopped":
            os.kill(last, signal.SIGSTOP)
        case "loses its leader":
            os.kill(first, signal.SIGKILL)
        case "is told to end":
            os.kill(first, signal.SIGTERM)
    await pair.wait_unlisted(worker)
    code = await asyncio.to_thread(pair.fleet.worker(worker).process.wait, PATIENT_S)
    assert code == EXIT_CODES[pair.fate]
    await wait_for(lambda: are_gone(card.processes))
