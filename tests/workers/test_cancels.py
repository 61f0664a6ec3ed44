"""A cancel, wherever it meets a request, ends its work and gives every block back, with no new traffic."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from proto.control import Cancel, CancelJob
from proto.reports import LoadReport
from proto.roles import Role
from tests.workers import client_run
from tests.workers.client_run import Body
from tests.workers.harness import (
    Client,
    Fleet,
    Frontend,
    Stream,
    open_client,
    open_frontend,
    random_prompt,
    until,
)
from workers.engine.simulated_model import SimulatedModel

SHORT, LONG, MEDIUM = 8, 800, 300
"""Tokens of prompts: one that stays, one that is prefilled elsewhere for a second, one of half a second."""
VERY_LONG, CHUNK = 2000, 32
SLOW = SimulatedModel(step_s=0.005, prefill_token_s=0.001, first_token=10, num_tokens=400)
ALONE: dict[str, Any] = {
    "num_blocks": 256,
    "step_tokens": CHUNK,
    "max_sequences": 2,
    "remote_min_tokens": 10**9,
}


def run_client(fleet: Fleet, body: Body) -> None:
    async def with_rest(client: Client) -> None:
        await body(client)
        await assert_rest(fleet, client)

    client_run.run_client(fleet, with_rest, idle=("prefill",))


async def assert_rest(fleet: Fleet, client: Client) -> None:
    """Every block is free, and two reports later nothing has been computed."""
    await client.wait_rest("decode", "prefill")
    before = [await steps_of(fleet, name) for name in ("decode", "prefill")]
    for _ in range(2):
        async with asyncio.TaskGroup() as tasks:
            for name in ("decode", "prefill"):
                tasks.create_task(client.wait_report(name, is_idle), name=f"a report of {name}")
    assert [await steps_of(fleet, name) for name in ("decode", "prefill")] == before


def is_idle(report: LoadReport) -> bool:
    return report.num_running + report.num_waiting == 0


async def steps_of(fleet: Fleet, name: str) -> float:
    return await asyncio.to_thread(fleet.worker(name).metric, "kvmesh_engine_steps")


async def jobs_of(fleet: Fleet) -> float:
    return await asyncio.to_thread(fleet.worker("prefill").metric, "kvmesh_prefill_jobs_served_total")


async def wait_granted(client: Client, num_grants: int) -> None:
    """Until so many grants are open, no more and no fewer."""

    async def are_granted() -> bool:
        return len((await client.holdings("decode")).granted) == num_grants

    await until(f"{num_grants} grants are open", are_granted)


async def begin_remote(client: Client, *lengths: int) -> list[Stream]:
    """Requests of so many tokens at one moment, so that the load of none keeps another from going away."""
    seeds = iter(range(id(client) % 10**6, 10**9))
    return [await client.begin("decode", random_prompt(length, next(seeds))) for length in lengths]


def test_a_request_that_waits_for_its_turn(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        prompts = [random_prompt(SHORT, seed) for seed in range(3)]
        streams = [await client.begin("decode", prompt, max_tokens=2000) for prompt in prompts]
        await client.wait_report("decode", lambda report: report.num_waiting == 1)
        waiting = streams[2]
        await client.cancel(waiting)
        await client.wait_report("decode", lambda report: report.num_waiting == 0)
        assert waiting.tokens == []
        for stream in streams[:2]:
            await client.cancel(stream)

    run_client(simulated, body)


def test_a_request_whose_job_nobody_has_taken(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        before = await jobs_of(simulated)
        *others, offered = await begin_remote(client, LONG, LONG, MEDIUM)
        await wait_granted(client, 2)
        await client.cancel(offered)
        for stream in others:
            assert (await client.finish(stream)).prefill == "remote"
        assert offered.tokens == []
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        assert await jobs_of(simulated) - before == 2

    run_client(simulated, body)


def test_a_request_that_is_granted_and_waits_at_the_prefill_worker(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        first, second = await begin_remote(client, LONG, LONG)
        await wait_granted(client, 2)
        await client.cancel(second)
        await wait_granted(client, 1)

        async def is_released() -> bool:
            return not (await client.holdings("decode")).quarantined

        await until("its blocks are released", is_released)
        assert first.end is None
        assert (await client.finish(first)).prefill == "remote"
        assert second.tokens == []

    run_client(simulated, body)


def test_a_request_that_is_computed_at_the_prefill_worker(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        (stream,) = await begin_remote(client, LONG)
        before = await steps_of(simulated, "prefill")

        async def is_computed() -> bool:
            return await steps_of(simulated, "prefill") > before

        await until("the prompt is computed", is_computed)
        await client.cancel(stream)
        cancelled = await steps_of(simulated, "prefill")
        await client.wait_rest("decode", "prefill", limit_s=2)
        assert await steps_of(simulated, "prefill") - cancelled <= 2
        assert stream.tokens == []

    run_client(simulated, body)


def test_a_short_request_behind_a_cancelled_long_prefill_starts_with_the_next_chunk(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        cancelled, follower = await begin_remote(client, VERY_LONG, CHUNK)
        await wait_granted(client, 2)
        await client.cancel(cancelled)
        before = await steps_of(simulated, "prefill")
        assert (await client.finish(follower, limit_s=2)).prefill == "remote"
        assert await steps_of(simulated, "prefill") - before <= 3

    run_client(simulated, body)


def test_a_short_request_here_behind_a_cancelled_long_prefill_starts_with_the_next_chunk(
    simulated: Fleet, tiny: Path
) -> None:
    async def body(client: Client) -> None:
        simulated.start("alone", Role.DECODE, tiny, engine="simulated", simulated=SLOW, **ALONE)
        await simulated.wait_ready("alone")
        cancelled = await client.begin("alone", random_prompt(VERY_LONG - 1, 31))
        await client.wait_report("alone", lambda report: report.num_running == 1)
        follower = await client.begin("alone", random_prompt(SHORT, 32), max_tokens=1)
        await client.cancel(cancelled)
        before = await steps_of(simulated, "alone")
        await client.finish(follower, limit_s=2)
        assert await steps_of(simulated, "alone") - before <= 2
        assert cancelled.tokens == []
        await client.wait_rest("alone")

    run_client(simulated, body)


@pytest.mark.parametrize("num_tokens", [SHORT, MEDIUM])
def test_a_request_that_is_decoded(simulated: Fleet, num_tokens: int) -> None:
    async def body(client: Client) -> None:
        stream = await client.begin("decode", random_prompt(num_tokens, seed=num_tokens), max_tokens=1000)
        await client.wait(lambda: len(stream.tokens) > 3)
        await client.cancel(stream)
        num_frames = stream.num_frames
        await client.wait_rest("decode", limit_s=2)
        assert stream.num_frames <= num_frames + 2
        assert stream.end is None

    run_client(simulated, body)


@pytest.mark.parametrize("num_tokens", [SHORT, MEDIUM])
def test_a_request_that_is_cancelled_at_any_moment(simulated: Fleet, num_tokens: int) -> None:
    """Cancelled later and later, so that one of them meets each thing that happens in between."""

    async def body(client: Client) -> None:
        for turn in range(40):
            prompt = random_prompt(num_tokens, seed=1000 * num_tokens + turn)
            stream = await client.begin("decode", prompt, max_tokens=50)
            for _ in range(turn):
                await client.holdings("decode")
            for _ in range(1 + turn % 2):
                await client.cancel(stream)

    run_client(simulated, body)


def test_a_request_that_has_not_come_yet(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        await client.tell("decode", Cancel("early", 1))
        first = await client.begin("decode", random_prompt(SHORT, 1), request="early", attempt=0)
        second = await client.begin("decode", random_prompt(SHORT, 1), request="early", attempt=1)
        third = await client.generate("decode", random_prompt(SHORT, 1), request="early", attempt=2)
        assert len(third.tokens) == 8
        assert first.num_frames == second.num_frames == 0

    run_client(simulated, body)


def test_a_cancel_ends_earlier_attempts_and_no_later_one(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt = random_prompt(SHORT, 2)
        first = await client.begin("decode", prompt, request="moved", attempt=0, max_tokens=2000)
        second = await client.begin("decode", prompt, request="moved", attempt=1, max_tokens=30)
        await client.tell("decode", Cancel("moved", 0))
        await client.finish(second)
        assert first.end is None
        assert len(second.tokens) == 30

    run_client(simulated, body)


def test_cancels_of_what_nobody_knows_are_done_at_once(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        await client.tell("decode", Cancel("nobody knows it", 10**15))
        await client.tell("prefill", CancelJob("nobody knows it"))

    run_client(simulated, body)


def test_a_request_whose_time_is_over_ends_with_a_fault(simulated: Fleet) -> None:
    async def body(client: Client) -> None:
        for prompt in (random_prompt(SHORT, 3), random_prompt(LONG, 3)):
            stream = await client.generate("decode", prompt, max_tokens=2000, deadline_s=0.2)
            assert stream.final.finish is None
            assert stream.final.fault is not None
            assert stream.final.fault.code == "deadline_exceeded"

    run_client(simulated, body)


def run_two_frontends(fleet: Fleet, body: Callable[[Frontend, Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_frontend(fleet, "tiny") as frontend, open_client(fleet, "tiny") as other:
            await other.wait_report("prefill", lambda report: report.num_jobs == 0)
            await body(frontend, other)
            await assert_rest(fleet, other)

    asyncio.run(run())


def test_the_work_of_a_frontend_that_is_gone_is_cancelled_and_no_other(simulated: Fleet) -> None:
    async def body(frontend: Frontend, other: Client) -> None:
        await frontend.client.begin("decode", random_prompt(SHORT, 4), max_tokens=2000)
        await frontend.client.begin("decode", random_prompt(LONG, 4), max_tokens=2000)
        kept = await other.begin("decode", random_prompt(SHORT, 5), max_tokens=1000)
        frontend.stop_beating()
        await frontend.stop_listening()
        await other.wait_report("decode", lambda report: report.num_running + report.num_waiting == 1)
        assert kept.end is None
        await other.cancel(kept)

    run_two_frontends(simulated, body)


def test_a_frontend_that_beats_or_listens_is_served_on(simulated: Fleet) -> None:
    async def body(frontend: Frontend, other: Client) -> None:
        async with open_frontend(simulated, "tiny") as unheard:
            prompts = random_prompt(SHORT, 6), random_prompt(SHORT, 7)
            heard = await frontend.client.begin("decode", prompts[0], max_tokens=450)
            unread = await unheard.client.begin("decode", prompts[1], max_tokens=450)
            frontend.stop_beating()
            await unheard.stop_listening()
            await frontend.client.finish(heard)
            await other.wait_report("decode", lambda report: report.num_running == 0)
            assert len(heard.tokens) == 450
            assert len((await unheard.client.resend(unread)).tokens) == 4 * 450

    run_two_frontends(simulated, body)
