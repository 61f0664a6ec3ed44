"""A worker that is stopped, killed or cut off in the middle of a prefill.

Nobody hangs, no block is lost, and no token of anybody changes.
"""

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role
from services.servers import Server
from tests.workers import client_run
from tests.workers.harness import Client, Fleet, Stream, Worker, open_client, random_prompt, until

COMPUTING: dict[str, Any] = {"step_tokens": 80, "push_kib": 1}
VICTIM_TOKENS = 2000
SETTINGS: dict[str, Any] = {
    **COMPUTING,
    "num_blocks": 300,
    "remote_min_tokens": 24,
    "prefill_choice": "threshold",
    "grant_wait_s": 1.0,
    "max_lent_share": 0.6,
}


@pytest.fixture(scope="module")
def mortal(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A decode worker in whose pool a victim's blocks leave little room, and a prefill worker to hurt."""
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path_factory.mktemp("mortal"))
    fleet.start("decode", Role.DECODE, tiny, **SETTINGS)
    fleet.start("prefill", Role.PREFILL, tiny, num_blocks=300, **COMPUTING)
    try:
        asyncio.run(fleet.wait_ready("decode", "prefill"))
        yield fleet
    finally:
        fleet.close()


run_client = partial(client_run.run_client, idle=("prefill",))


async def begin_granted(client: Client, seed: int, decode: str = "decode") -> Stream:
    """A request whose prompt is being prefilled elsewhere."""
    stream = await client.begin(decode, random_prompt(VICTIM_TOKENS, seed))

    async def is_granted() -> bool:
        return bool((await client.holdings(decode)).granted)

    await until("a grant is open", is_granted)
    return stream


async def begin_stopped(client: Client, prefill: Worker) -> tuple[list[int], Stream]:
    """A request whose prompt `prefill` was stopped in the middle of, and that prompt."""
    for seed in range(40, 50):
        stream = await begin_granted(client, seed)
        prefill.process.suspend()
        if (await client.holdings("decode")).granted:
            return random_prompt(VICTIM_TOKENS, seed), stream
        prefill.process.resume()
        await client.finish(stream)
    raise AssertionError("the prefill worker is faster than a signal")


async def prefills_are_remote(client: Client, seed: int) -> None:
    """Soon: `decode` has to hear of a new life, and asks nobody for a while whose last job failed."""
    seeds = count(seed)

    async def is_remote() -> bool:
        stream = await client.generate("decode", random_prompt(200, next(seeds)))
        return stream.final.prefill == "remote"

    await until("prefills go elsewhere", is_remote)


async def expected_tokens(reference: Fleet, prompts: list[list[int]]) -> list[list[int]]:
    """As a worker without any trouble says them."""
    async with open_client(reference, "tiny") as other:
        return [(await other.generate("local", prompt)).tokens for prompt in prompts]


def test_a_stopped_prefill_worker_hurts_nobody_when_it_wakes(mortal: Fleet, computing: Fleet) -> None:
    async def body(client: Client) -> None:
        others = [random_prompt(40 + 30 * index, seed=60 + index) for index in range(6)]
        prompt, victim = await begin_stopped(client, mortal.worker("prefill"))
        during = [await client.begin("decode", other) for other in others]
        assert (await client.finish(victim)).prefill == "local"
        for stream in during:
            await client.finish(stream)
        (quarantined,) = (await client.holdings("decode")).quarantined
        assert quarantined.num_blocks == VICTIM_TOKENS // 16
        mortal.worker("prefill").process.resume()
        await client.wait_rest("decode", "prefill")
        expected = await expected_tokens(computing, [prompt, *others])
        assert [stream.tokens for stream in (victim, *during)] == expected
        after = [(await client.generate("decode", other)).tokens for other in others]
        assert after == expected[1:]

    run_client(mortal, body)


def test_a_killed_prefill_worker_is_proven_gone_and_its_successor_works(
    mortal: Fleet, computing: Fleet, tiny: Path
) -> None:
    async def body(client: Client) -> None:
        victim = await begin_granted(client, 70)
        mortal.worker("prefill").process.kill()
        await client.finish(victim, limit_s=10)
        assert [victim.tokens] == await expected_tokens(computing, [random_prompt(VICTIM_TOKENS, 70)])
        await client.wait_rest("decode", limit_s=5)
        mortal.start("prefill", Role.PREFILL, tiny, num_blocks=300, **COMPUTING)
        await mortal.wait_ready("prefill")
        await prefills_are_remote(client, 71)
        await client.wait_rest("decode", "prefill")

    run_client(mortal, body)


def test_a_killed_decode_worker_leaves_nothing_at_the_prefill_worker(mortal: Fleet, tiny: Path) -> None:
    async def body(client: Client) -> None:
        doomed = mortal.start("doomed", Role.DECODE, tiny, **SETTINGS)
        await mortal.wait_ready("doomed")
        for _ in range(2):  # a beat that it has heard, too
            await client.wait_report("prefill", lambda report: True)
        await begin_granted(client, 72, "doomed")
        doomed.process.kill()
        await client.wait_rest("prefill", limit_s=10)
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        await prefills_are_remote(client, 90)

    run_client(mortal, body)
