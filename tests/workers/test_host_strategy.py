"""KV by way of the host's memory, of which there is little: nobody can tell by the tokens."""

import asyncio
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role
from services.servers import Server
from tests.workers import client_run
from tests.workers.client_run import Body
from tests.workers.conftest import BLOCK_SIZE, REMOTE_MIN_TOKENS
from tests.workers.harness import Client, Fleet, Stream, open_client, random_prompt, until
from workers.transfer.transfer_settings import TransferSettings

NAMES = ("decode", "prefill")
PATIENT_S = 60.0
NUM_STAGING_BLOCKS = 64
"""Of 16 KiB, that a MiB holds: prompts of more than 1,024 tokens find no room at all."""
NUM_WAVES, NUM_AT_ONCE = 6, 5
LENT = "kvmesh_staging_blocks_lent"


@pytest.fixture(scope="module")
def staged(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path_factory.mktemp("staged"))
    common: dict[str, Any] = {
        "transfer": TransferSettings(strategy="host", staging_mib=1, bounce_mib=1),
        "num_blocks": 300,
        "step_tokens": 128,
        "push_kib": 1,
        "grant_wait_s": 10.0,
        "lost_after_s": 3.0,
    }
    remote = {**common, "remote_min_tokens": REMOTE_MIN_TOKENS, "prefill_choice": "threshold"}
    try:
        fleet.start("decode", Role.DECODE, tiny, **remote)
        fleet.start("prefill", Role.PREFILL, tiny, **common)
        asyncio.run(fleet.wait_ready(*NAMES))
        yield fleet
    finally:
        fleet.close()


def run_client(fleet: Fleet, body: Body) -> None:
    """Afterwards every block is free, and every staging block."""

    async def with_rest(client: Client) -> None:
        await body(client)
        await client.wait_rest(*NAMES, limit_s=PATIENT_S)
        for name in NAMES:
            assert await metric(fleet, name, "kvmesh_staging_blocks") == NUM_STAGING_BLOCKS
            await until(f"all staging of {name} is free", partial(is_unlent, fleet, name), PATIENT_S)

    client_run.run_client(fleet, with_rest, idle=("prefill",))


async def is_unlent(fleet: Fleet, worker: str) -> bool:
    return await metric(fleet, worker, LENT) == 0


async def metric(fleet: Fleet, worker: str, name: str, **labels: str) -> float:
    return await asyncio.to_thread(lambda: fleet.worker(worker).metric(name, **labels))


async def generate_remotely(client: Client, num_tokens: int, seed: int) -> tuple[list[int], Stream]:
    """A prompt that was prefilled elsewhere: after a job that failed its taker is not asked for a while."""
    tried: list[tuple[list[int], Stream]] = []

    async def is_remote() -> bool:
        prompt = random_prompt(num_tokens, seed + len(tried))
        tried.append((prompt, await client.generate("decode", prompt)))
        return tried[-1][1].final.prefill == "remote"

    await until("a prompt is prefilled elsewhere", is_remote, PATIENT_S)
    return tried[-1]


async def generate_without_room(client: Client, fleet: Fleet, seed: int) -> tuple[list[int], Stream]:
    """A prompt that needs more staging blocks than there are, told apart by the count of why it stayed."""
    tried: list[tuple[list[int], Stream]] = []
    before = await no_room(fleet)

    async def is_counted() -> bool:
        prompt = random_prompt((NUM_STAGING_BLOCKS + 1) * BLOCK_SIZE + 1, seed + len(tried))
        tried.append((prompt, await client.generate("decode", prompt)))
        return await no_room(fleet) > before

    await until("a prompt has no room elsewhere", is_counted, PATIENT_S)
    return tried[-1]


async def no_room(fleet: Fleet) -> float:
    return await metric(fleet, "decode", "kvmesh_prefill_choices_total", where="local", reason="no_room")


async def check_alone(computing: Fleet, prompt: list[int], stream: Stream) -> None:
    """Its tokens are those of a worker that prefills all itself."""
    async with open_client(computing, "tiny") as client:
        assert (await client.generate("local", prompt)).tokens == stream.tokens


def test_tokens_are_those_of_a_local_prefill_and_what_has_no_room_is_one(
    staged: Fleet, computing: Fleet
) -> None:
    async def body(client: Client) -> None:
        await check_alone(computing, *await generate_remotely(client, 500, seed=1))
        prompt, without_room = await generate_without_room(client, staged, seed=2000)
        assert without_room.final.prefill == "local"
        await check_alone(computing, prompt, without_room)

    run_client(staged, body)


def test_after_cancels_at_any_moment_every_block_is_back_on_both_sides(
    staged: Fleet, computing: Fleet
) -> None:
    """More at once than there is staging for, cancelled later and later."""

    async def body(client: Client) -> None:
        chance = random.Random(5)
        for wave in range(NUM_WAVES):
            prompts = [random_prompt(chance.randint(100, 1000), 100 * wave + n) for n in range(NUM_AT_ONCE)]
            streams = [await client.begin("decode", prompt, max_tokens=50) for prompt in prompts]
            for stream in streams:
                for _ in range(wave):
                    await client.holdings("decode")
                await client.cancel(stream)
        await client.wait_rest(*NAMES, limit_s=PATIENT_S)
        await check_alone(computing, *await generate_remotely(client, 500, seed=10_000))

    run_client(staged, body)
