"""A worker whose bus goes away and comes back: what it does goes on, and all of it can be had afterwards."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role
from services.servers import Server
from tests.workers.harness import Client, Fleet, Worker, open_client, random_prompt, until
from workers.engine.simulated_model import SimulatedModel


@pytest.fixture
def cut_off(
    make_nats: Callable[[], Server], etcd_server: Server, tiny: Path, tmp_path: Path
) -> Iterator[Fleet]:
    """Simulated workers over a bus of their own. A token of a prompt takes 2 ms, a step 5."""
    fleet = Fleet(make_nats(), etcd_server, f"test-{new_id()}", tmp_path)
    model = SimulatedModel(step_s=0.005, prefill_token_s=0.002, first_token=10, num_tokens=400)
    common: dict[str, Any] = {"engine": "simulated", "simulated": model, "num_blocks": 256, "step_tokens": 96}
    fleet.start("decode", Role.DECODE, tiny, remote_min_tokens=24, prefill_choice="threshold", **common)
    fleet.start("prefill", Role.PREFILL, tiny, **common)
    try:
        asyncio.run(fleet.wait_ready("decode", "prefill"))
        yield fleet
    finally:
        fleet.close()


async def wait_all_ended(worker: Worker) -> None:
    """Until all that the worker serves has come to its end, as its own port tells without the bus."""

    async def has_ended() -> bool:
        running = await asyncio.to_thread(worker.metric, "kvmesh_sequences_running")
        awaiting = await asyncio.to_thread(worker.metric, "kvmesh_decode_queue_length")
        return running + awaiting == 0

    await until("everything has ended", has_ended)


def test_workers_that_lose_the_bus_go_on_and_every_token_can_be_had_afterwards(cut_off: Fleet) -> None:
    async def run() -> None:
        async with open_client(cut_off, "tiny") as client:
            await client.wait_report("prefill", lambda report: report.num_jobs == 0)
            await body(client)

    async def body(client: Client) -> None:
        running = await client.begin("decode", random_prompt(8, 45), max_tokens=400)
        remote = await client.begin("decode", random_prompt(1000, 46), max_tokens=5)
        queued = await client.begin("decode", random_prompt(900, 47), max_tokens=5)

        async def are_granted() -> bool:
            return len((await client.holdings("decode")).granted) > 0

        await until("a job is granted", are_granted)
        await client.wait(lambda: len(running.tokens) > 3)
        await asyncio.to_thread(cut_off.nats.kill)
        await wait_all_ended(cut_off.worker("decode"))
        await asyncio.to_thread(cut_off.nats.restart)
        await client.bus.wait_connected(10)
        client.offsets.clear()
        await client.wait(lambda: len(client.offsets) == 3)
        assert all(live.has_ended for live in client.offsets.values())
        for stream, num_tokens in ((running, 400), (remote, 5), (queued, 5)):
            frame = await client.resend(stream)
            assert frame.end is not None
            assert len(frame.tokens) == 4 * num_tokens
            assert frame.end.finish == "length"
        await client.wait_rest("decode", "prefill")
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        assert (await client.generate("decode", random_prompt(300, 48))).final.prefill == "remote"

    asyncio.run(run())
