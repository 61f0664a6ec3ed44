"""A writer that is stopped at any moment, for any time, and replaced meanwhile: no other's tokens change.

The decode worker's pool is so small that what a stopped writer may still write into would be somebody else's.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto import keys
from proto.names import new_id
from proto.roles import Role
from services.directory import DirectorySettings, open_directory
from services.process import EXIT_FAILED
from services.servers import Server
from tests.workers.client_run import run_client
from tests.workers.faulty_link import FaultyLink, open_faulty_link
from tests.workers.harness import Client, Fleet, Stream, Worker, random_prompt, until
from tests.workers.test_deaths import expected_tokens

NUM_BLOCKS = 160
LENT_SHARE = 0.6
VICTIM_TOKENS = 700
NUM_OTHERS = 14
PUSHED = "kvmesh_kv_bytes_pushed_total"
COMPUTING: dict[str, Any] = {"step_tokens": 32, "push_kib": 1}
DECODING: dict[str, Any] = {
    **COMPUTING,
    "max_sequences": 8,
    "num_blocks": NUM_BLOCKS,
    "max_lent_share": LENT_SHARE,
    "remote_min_tokens": 24,
    "grant_wait_s": 1.0,
    "prefill_choice": "threshold",
}
PREFILLING: dict[str, Any] = {**COMPUTING, "num_blocks": 300, "max_sequences": 1}
"""One job is computed at a time: a second one is granted, and nothing of it written."""


@pytest.fixture
def fenced(nats_server: Server, etcd_server: Server, tiny: Path, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path)
    fleet.start("decode", Role.DECODE, tiny, max_quarantine_s=60.0, **DECODING)
    try:
        asyncio.run(fleet.wait_ready("decode"))
        yield fleet
    finally:
        fleet.close()


async def start_prefill(fleet: Fleet, client: Client, tiny: Path, bus_url: str = "") -> Worker:
    worker = fleet.start("prefill", Role.PREFILL, tiny, bus_url=bus_url, **PREFILLING)
    await fleet.wait_ready("prefill")
    await client.wait_report("prefill", lambda report: report.num_jobs == 0)
    return worker


async def stop_two(client: Client, prefill: Worker, seed: int) -> list[tuple[list[int], Stream]]:
    """Two requests; `prefill` is stopped while it writes the one's KV, and before it writes the other's."""
    for first in range(seed, seed + 20, 2):
        prompts = [random_prompt(VICTIM_TOKENS, number) for number in (first, first + 1)]
        before = await asyncio.to_thread(prefill.metric, PUSHED)
        streams = [await client.begin("decode", prompt) for prompt in prompts]

        async def is_written(before: float = before) -> bool:
            return await asyncio.to_thread(prefill.metric, PUSHED) > before

        await until("some is written", is_written)
        prefill.process.suspend()
        if len((await client.holdings("decode")).granted) == 2:
            return list(zip(prompts, streams, strict=True))
        prefill.process.resume()
        for stream in streams:
            await client.finish(stream)
    raise AssertionError("the prefill worker is faster than a signal")


class Others:
    """Requests beside the victims, some of which are cancelled. `found` has what the rest said, `most_lent`
    the most blocks that were granted or in quarantine when somebody looked."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._seed = seed
        self.found: list[tuple[list[int], Stream]] = []
        self.most_lent = 0

    async def run(self) -> None:
        for index in range(NUM_OTHERS):
            prompt = random_prompt(20 + 37 * index, self._seed + index)
            stream = await self._client.begin("decode", prompt)
            if index % 2:
                doomed = await self._client.begin("decode", random_prompt(300, self._seed + 500 + index))
                await self._note_lent()
                await self._client.cancel(doomed)
            await self._client.finish(stream)
            self.found.append((prompt, stream))
            await self._note_lent()

    async def _note_lent(self) -> None:
        holdings = await self._client.holdings("decode")
        num_lent = sum(each.num_blocks for each in (*holdings.granted, *holdings.quarantined))
        self.most_lent = max(self.most_lent, num_lent)


async def check_tokens(computing: Fleet, found: list[tuple[list[int], Stream]]) -> None:
    expected = await expected_tokens(computing, [prompt for prompt, _ in found])
    assert [stream.tokens for _, stream in found] == expected


def test_a_writer_that_was_stopped_before_and_in_its_writes_changes_nobodys_tokens(
    fenced: Fleet, computing: Fleet, tiny: Path
) -> None:
    async def body(client: Client) -> None:
        prefill = await start_prefill(fenced, client, tiny)
        during, after = Others(client, 1000), Others(client, 2000)
        (first, kept), (_, cancelled) = await stop_two(client, prefill, 0)
        await client.cancel(cancelled)
        await during.run()
        assert (await client.finish(kept)).prefill == "local"
        quarantined = (await client.holdings("decode")).quarantined
        assert sum(each.num_blocks for each in quarantined) >= 2 * (VICTIM_TOKENS // 16)
        prefill.process.resume()
        await after.run()
        await client.wait_rest("decode", "prefill")
        assert max(during.most_lent, after.most_lent) <= LENT_SHARE * NUM_BLOCKS
        await check_tokens(computing, [(first, kept), *during.found, *after.found])

    run_client(fenced, body)


def test_a_writer_that_wakes_long_after_its_lease_beside_its_successor_changes_nobodys_tokens(
    fenced: Fleet, computing: Fleet, tiny: Path
) -> None:
    async def body(client: Client, link: FaultyLink) -> None:
        former = await start_prefill(fenced, client, tiny, link.url)
        (first, kept), (second, other) = await stop_two(client, former, 100)
        await wait_unlisted(fenced, "prefill")
        link.cut()  # nobody of this name is at the bus any more, and another may take it
        await start_prefill(fenced, client, tiny)
        during, after = Others(client, 3000), Others(client, 4000)
        await during.run()
        assert (await client.holdings("decode")).quarantined, "a successor proves nothing"
        former.process.resume()
        await after.run()
        victims = [(first, kept), (second, other)]
        for _, stream in victims:
            await client.finish(stream)
        await client.wait_rest("decode", limit_s=30)
        assert max(during.most_lent, after.most_lent) <= LENT_SHARE * NUM_BLOCKS
        assert any(stream.final.prefill == "remote" for _, stream in (*during.found, *after.found))
        await check_tokens(computing, [*victims, *during.found, *after.found])

    async def with_link(client: Client) -> None:
        async with open_faulty_link(fenced.nats.url, 1, lambda _: False) as link:
            await body(client, link)

    run_client(fenced, with_link)


async def wait_unlisted(fleet: Fleet, name: str) -> None:
    """Until the directory has nothing of the worker any more: its lease is gone."""
    async with open_directory(DirectorySettings(endpoints=[fleet.etcd.url])) as directory:

        async def is_unlisted() -> bool:
            return not await directory.list(keys.worker(fleet.ns, name))

        await until("its lease is gone", is_unlisted)


def test_quarantine_past_its_age_makes_the_worker_drain_and_start_anew(
    fenced: Fleet, computing: Fleet, tiny: Path
) -> None:
    async def body(client: Client) -> None:
        await start_prefill(fenced, client, tiny)
        aging = fenced.start("aging", Role.DECODE, tiny, max_quarantine_s=1.0, **DECODING)
        await fenced.wait_ready("aging")
        for _ in range(2):  # a beat that it has heard, too
            await client.wait_report("prefill", lambda report: True)
        prompt = random_prompt(VICTIM_TOKENS, 200)
        victim = await client.begin("aging", prompt)

        async def is_granted() -> bool:
            return bool((await client.holdings("aging")).granted)

        await until("a grant is open", is_granted)
        fenced.worker("prefill").process.suspend()
        await client.cancel(victim)
        assert await asyncio.to_thread(aging.process.wait, 20) == EXIT_FAILED
        assert "this worker has to start anew" in aging.log
        fenced.start("aging", Role.DECODE, tiny, max_quarantine_s=1.0, **DECODING)
        await fenced.wait_ready("aging")
        fenced.worker("prefill").process.resume()
        successor = await client.generate("aging", prompt)
        await client.wait_rest("aging", "prefill")
        await check_tokens(computing, [(prompt, successor)])

    run_client(fenced, body)
