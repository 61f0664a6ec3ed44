"""What workers ask, answer and tell of landings is lost and doubled at random: nothing leaks."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role
from services.servers import Server
from tests.workers import faulty_notices
from tests.workers.faulty_link import FaultyLink, open_faulty_link
from tests.workers.harness import Client, Fleet, Stream, open_client, random_prompt
from tests.workers.test_deaths import expected_tokens

SHARE = 0.15
COMMON: dict[str, Any] = {"num_blocks": 300, "step_tokens": 80, "push_kib": 1}
DECODING: dict[str, Any] = {
    **COMMON,
    "remote_min_tokens": 24,
    "grant_wait_s": 3.0,
    "prefill_choice": "threshold",
}


def is_meant(subject: str) -> bool:
    """What workers ask each other, and the answers."""
    return subject.startswith("_INBOX") or subject.endswith(".control")


async def serve_crowd(client: Client, num_requests: int) -> list[tuple[list[int], Stream]]:
    """Four at a time, every fifth cancelled, many with a prefix that only the decode worker has."""
    found: list[tuple[list[int], Stream]] = []
    shared = random_prompt(64, 5)
    await client.generate("decode", shared[:33])

    async def one(index: int) -> None:
        prompt = [*(shared if index % 2 else []), *random_prompt(60 + 23 * index % 300, 7000 + index)]
        stream = await client.begin("decode", prompt)
        if index % 5 == 0:
            await client.holdings("decode")
            await client.cancel(stream)
        else:
            await client.finish(stream, limit_s=90)
            found.append((prompt, stream))

    for first in range(0, num_requests, 4):
        async with asyncio.TaskGroup() as tasks:
            for index in range(first, min(first + 4, num_requests)):
                tasks.create_task(one(index), name=f"request {index}")
    return found


async def lose_messages(fleet: Fleet, link: FaultyLink, computing: Fleet, num_requests: int) -> None:
    async with open_client(fleet, "tiny") as client:
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        link.begin(SHARE)
        found = await serve_crowd(client, num_requests)
        link.begin(0.0)
        await check(client, computing, found)
    assert link.num_lost > 0
    assert link.num_doubled > 0


async def check(client: Client, computing: Fleet, found: list[tuple[list[int], Stream]]) -> None:
    await client.wait_rest("decode", "prefill", limit_s=40)
    await client.wait_report("prefill", lambda report: report.num_jobs == 0)
    expected = await expected_tokens(computing, [prompt for prompt, _ in found])
    assert [stream.tokens for _, stream in found] == expected
    assert any(stream.final.prefill == "remote" for _, stream in found)


@pytest.mark.parametrize(
    "num_requests", [12, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_messages_that_are_lost_or_doubled_leak_nothing_and_change_no_token(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path: Path, computing: Fleet, num_requests: int
) -> None:
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path)

    async def run() -> None:
        async with open_faulty_link(nats_server.url, 1, is_meant) as link:
            fleet.start("decode", Role.DECODE, tiny, **DECODING)
            fleet.start("prefill", Role.PREFILL, tiny, bus_url=link.url, **COMMON)
            await fleet.wait_ready("decode", "prefill")
            await lose_messages(fleet, link, computing, num_requests)

    try:
        asyncio.run(run())
    finally:
        fleet.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_requests", [8, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_landing_notices_that_are_lost_or_come_again_late_leak_nothing_and_change_no_token(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path: Path, computing: Fleet, num_requests: int
) -> None:
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path)

    async def run() -> None:
        fleet.start("decode", Role.DECODE, tiny, **DECODING)
        fleet.start("prefill", Role.PREFILL, tiny, spoil=faulty_notices.lose_notices, **COMMON)
        await fleet.wait_ready("decode", "prefill")
        async with open_client(fleet, "tiny") as client:
            await client.wait_report("prefill", lambda report: report.num_jobs == 0)
            await check(client, computing, await serve_crowd(client, num_requests))
        assert faulty_notices.LOST in fleet.worker("prefill").log
        assert faulty_notices.LATE_AGAIN in fleet.worker("prefill").log

    try:
        asyncio.run(run())
    finally:
        fleet.close()
