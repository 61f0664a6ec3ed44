"""A remote prefill that goes wrong in any way: bounded time, a fall back to here, and one answer."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proto import subjects
from proto.codec import encode
from proto.jobs import PrefillJob
from proto.names import new_id
from proto.roles import Role
from proto.tokens import pack_tokens
from services.servers import Server
from services.taker import Taker, open_taker
from services.work_queue import WorkQueueSettings, open_work_queue
from tests.workers import client_run
from tests.workers.client_run import Body
from tests.workers.harness import Client, Fleet, open_client, random_prompt, until
from workers.engine.simulated_model import SimulatedModel

LONG = 900
MODEL = SimulatedModel(step_s=0.005, prefill_token_s=0.001, first_token=10, num_tokens=400)
COMMON: dict[str, Any] = {"engine": "simulated", "simulated": MODEL, "num_blocks": 256}
DECODING: dict[str, Any] = {
    **COMMON,
    "remote_min_tokens": 24,
    "grant_wait_s": 3.0,
    "prefill_choice": "threshold",
    "asks_directly": False,
}
NOBODY_S = 7.5
"""What a job waits for its taker, and the local prefill of a long prompt, with air."""


@pytest.fixture
def queueing(nats_server: Server, etcd_server: Server, tiny: Path, tmp_path: Path) -> Iterator[Fleet]:
    """`decode` puts every job into the queue."""
    yield from run_fleet(Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path), tiny)


@pytest.fixture
def on_own_etcd(
    nats_server: Server, make_etcd: Callable[[], Server], tiny: Path, tmp_path: Path
) -> Iterator[Fleet]:
    yield from run_fleet(Fleet(nats_server, make_etcd(), f"test-{new_id()}", tmp_path), tiny)


def run_fleet(fleet: Fleet, tiny: Path) -> Iterator[Fleet]:
    fleet.start("decode", Role.DECODE, tiny, **DECODING)
    fleet.start("prefill", Role.PREFILL, tiny, **COMMON)
    try:
        asyncio.run(fleet.wait_ready("decode", "prefill"))
        yield fleet
    finally:
        fleet.close()


def sound_job() -> PrefillJob:
    """One that its owner knows nothing of."""
    return PrefillJob(
        new_id(), "r", "tiny", "decode", "no such life", pack_tokens(random_prompt(64, 3)), 10.0
    )


def run_client(fleet: Fleet, body: Body) -> None:
    async def with_rest(client: Client) -> None:
        await body(client)
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        await client.wait_rest("decode", "prefill")

    client_run.run_client(fleet, with_rest, idle=("prefill",))


@asynccontextmanager
async def open_as_taker(client: Client, ns: str) -> AsyncIterator[Taker]:
    """One more taker beside the workers."""
    settings = WorkQueueSettings()
    queue = await open_work_queue(client.bus, settings, subjects.prefill_stream(ns), subjects.prefill_any(ns))
    async with open_taker(queue, subjects.prefill(ns, "tiny")) as taker:
        yield taker


def test_a_job_that_no_taker_lived_to_end_is_dropped_at_its_last_delivery(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path: Path
) -> None:
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path)

    async def run() -> None:
        fleet.start("decode", Role.DECODE, tiny, **DECODING)
        await fleet.wait_ready("decode")
        async with open_client(fleet, "tiny") as client:
            async with open_as_taker(client, fleet.ns) as taker:
                await put_all(client, fleet.ns, [encode(sound_job())])
                for _ in range(WorkQueueSettings().max_deliveries - 1):
                    work = await taker.fetch(5)
                    assert work is not None
                    await work.give_back()
            prefill = fleet.start("prefill", Role.PREFILL, tiny, **COMMON)
            await fleet.wait_ready("prefill")
            for _ in range(2):  # a beat that the other has heard, too
                await client.wait_report("prefill", lambda report: report.num_jobs == 0)
            seeds = itertools.count(100)

            async def is_remote() -> bool:
                answer = await client.generate("decode", random_prompt(LONG, next(seeds)))
                return answer.final.prefill == "remote"

            await until("jobs are done again", is_remote)
            assert "never done: it is dropped" in prefill.log

    try:
        asyncio.run(run())
    finally:
        fleet.close()


async def put_all(client: Client, ns: str, payloads: list[bytes]) -> None:
    """Into the queue that workers fetch from, as a decode worker does."""
    queue = await open_work_queue(
        client.bus, WorkQueueSettings(), subjects.prefill_stream(ns), subjects.prefill_any(ns)
    )
    for payload in payloads:
        await queue.put(subjects.prefill(ns, "tiny"), new_id(), payload)


def test_a_job_that_nobody_takes_is_done_here_in_a_bounded_time(queueing: Fleet) -> None:
    async def body(client: Client) -> None:
        queueing.worker("prefill").process.suspend()
        stream = await client.begin("decode", random_prompt(LONG, 1))
        assert (await client.finish(stream, limit_s=NOBODY_S)).prefill == "local"
        queueing.worker("prefill").process.resume()
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        assert (await client.generate("decode", random_prompt(LONG, 2))).final.prefill == "remote"

    run_client(queueing, body)


def test_a_prompt_whose_only_prefill_worker_is_silent_is_done_here_at_once(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path: Path
) -> None:
    """It is not put into a queue that nobody reads, to wait there for a taker."""
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path)
    asking = DECODING | {"asks_directly": True, "grant_wait_s": 60.0}

    async def body(client: Client) -> None:
        fleet.worker("prefill").process.suspend()
        stream = await client.begin("decode", random_prompt(LONG, 1))
        assert (await client.finish(stream, limit_s=NOBODY_S)).prefill == "local"
        fleet.worker("prefill").process.resume()

    try:
        fleet.start("decode", Role.DECODE, tiny, **asking)
        fleet.start("prefill", Role.PREFILL, tiny, **COMMON)
        asyncio.run(fleet.wait_ready("decode", "prefill"))
        run_client(fleet, body)
    finally:
        fleet.close()


def test_jobs_that_nobody_can_do_hold_up_no_other(queueing: Fleet) -> None:
    spoiled: list[dict[str, Any]] = [
        {},
        {"owner": "nobody"},
        {"prompt": b"\x01\x02\x03"},
        {"prompt": b""},
        {"prompt": pack_tokens([2**31] * 40)},
        {"deadline_s": float("nan")},
        {"deadline_s": -1.0},
        {"cached_tokens": -5},
        {"priority": -(2**40)},
    ]

    async def body(client: Client) -> None:
        jobs = [msgspec.structs.replace(sound_job(), **fields) for fields in spoiled]
        await put_all(client, queueing.ns, [b"", b"\xff" * 50, *map(encode, jobs)])
        stream = await client.begin("decode", random_prompt(LONG, 4))
        assert (await client.finish(stream, limit_s=NOBODY_S)).prefill == "remote"
        assert queueing.worker("prefill").process.is_running

    run_client(queueing, body)


def test_a_job_of_the_workers_own_from_when_it_decoded_is_done_with(queueing: Fleet) -> None:
    async def body(client: Client) -> None:
        life = client.reports["prefill"].incarnation
        own = msgspec.structs.replace(sound_job(), owner="prefill", owner_incarnation=life)
        await put_all(client, queueing.ns, [encode(own)])
        assert (await client.generate("decode", random_prompt(LONG, 9))).final.prefill == "remote"
        assert "meeting prefill" not in queueing.worker("prefill").log

    run_client(queueing, body)


@pytest.mark.slow
def test_an_etcd_that_is_started_again_in_mid_prefill_is_seen_by_nobody(on_own_etcd: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await client.begin("decode", random_prompt(LONG, 5))

        async def is_granted() -> bool:
            return bool((await client.holdings("decode")).granted)

        await until("a grant is open", is_granted)
        await asyncio.to_thread(on_own_etcd.etcd.kill)
        assert (await client.finish(stream)).prefill == "remote"
        assert (await client.generate("decode", random_prompt(LONG, 6))).final.prefill == "remote"
        await asyncio.to_thread(on_own_etcd.etcd.restart)
        assert (await client.generate("decode", random_prompt(LONG, 7))).final.prefill == "remote"

    run_client(on_own_etcd, body)
