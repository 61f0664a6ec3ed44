"""Writes over TCP to a worker that is stopped, or over a connection that is: health says so in seconds, and
nothing is held up by them."""

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
from tests.workers.deafness import deafen_when_told, make_deaf, make_hear
from tests.workers.harness import Client, Fleet, Stream, Worker, random_prompt, until
from tests.workers.test_deaths import expected_tokens
from workers.transfer.transfer_settings import TransferSettings

PROMPT = random_prompt(2000, 80)
PUSHED = "kvmesh_kv_bytes_pushed_total"
END_S = 20.0
"""A drain, what is given back, and the wait for what moves; with air."""


@pytest.fixture
def over_tcp(nats_server: Server, etcd_server: Server, tiny: Path, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path)
    common: dict[str, Any] = {
        "num_blocks": 300,
        "max_sequences": 8,
        "step_tokens": 32,
        "push_kib": 1,
        "transfer": TransferSettings(transports=["tcp"], stall_s=1.0),
    }
    common["spoil"] = partial(deafen_when_told, frozenset({port_of(nats_server), port_of(etcd_server)}))
    fleet.start("decode", Role.DECODE, tiny, remote_min_tokens=24, prefill_choice="threshold", **common)
    fleet.start("prefill", Role.PREFILL, tiny, **common)
    try:
        asyncio.run(fleet.wait_ready("decode", "prefill"))
        yield fleet
    finally:
        fleet.close()


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


run_client = partial(client_run.run_client, idle=("prefill",))


async def stop_in_mid_write(fleet: Fleet, client: Client) -> Stream:
    """The decode worker, while it is written to, until health fails there; the answer that is awaited."""
    decode, prefill = fleet.worker("decode"), fleet.worker("prefill")
    before = await asyncio.to_thread(prefill.metric, PUSHED)
    stream = await client.begin("decode", PROMPT)

    async def is_written() -> bool:
        return await asyncio.to_thread(prefill.metric, PUSHED) > before

    await until("some is written", is_written)
    assert await ailments_of(prefill) == {}
    decode.process.suspend()
    await wait_ailing(prefill, is_ailing=True)
    return stream


async def assert_whole(client: Client, stream: Stream, computing: Fleet) -> None:
    """It ends once the worker goes on, with every token and a reason."""
    assert (await client.finish(stream)).finish == "length"
    assert [stream.tokens] == await expected_tokens(computing, [PROMPT])


async def ailments_of(worker: Worker) -> dict[str, str]:
    return await asyncio.to_thread(lambda: worker.ailments)


async def wait_ailing(worker: Worker, *, is_ailing: bool) -> None:
    async def has_changed() -> bool:
        return ("transfers" in await ailments_of(worker)) == is_ailing

    await until("health has changed", has_changed, limit_s=20)


def test_health_fails_while_a_write_is_stuck_and_all_is_well_once_it_has_ended(
    over_tcp: Fleet, computing: Fleet
) -> None:
    async def body(client: Client) -> None:
        stream = await stop_in_mid_write(over_tcp, client)
        over_tcp.worker("decode").process.resume()
        await assert_whole(client, stream, computing)
        await wait_ailing(over_tcp.worker("prefill"), is_ailing=False)
        await client.wait_rest("decode", "prefill")
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        await wait_remote(client)

    run_client(over_tcp, body)


async def wait_remote(client: Client) -> None:
    seeds = count(81)

    async def is_asked_again() -> bool:
        answer = await client.generate("decode", random_prompt(500, next(seeds)))
        return answer.final.prefill == "remote"

    await until("the prefill worker is asked again", is_asked_again, 2 * END_S)


def test_a_pair_whose_connection_is_stuck_serves_remote_prefills_again_while_it_is(
    over_tcp: Fleet, computing: Fleet
) -> None:
    """Both processes are well. What is stuck keeps its blocks from others until it has landed."""

    async def body(client: Client) -> None:
        decode, prefill = over_tcp.worker("decode"), over_tcp.worker("prefill")
        await wait_remote(client)
        make_deaf(decode.process)
        stream = await client.begin("decode", PROMPT)
        await wait_ailing(prefill, is_ailing=True)
        await assert_whole(client, stream, computing)
        assert stream.final.prefill == "local"
        await wait_remote(client)
        assert (await client.holdings("decode")).quarantined
        assert "transfers" in await ailments_of(prefill)
        make_hear(decode.process)
        await wait_ailing(prefill, is_ailing=False)
        await client.wait_rest("decode", "prefill")

    run_client(over_tcp, body)


@pytest.mark.slow
def test_a_stuck_write_does_not_keep_a_worker_from_ending(over_tcp: Fleet, computing: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await stop_in_mid_write(over_tcp, client)
        prefill = over_tcp.worker("prefill").process
        prefill.terminate()
        await asyncio.to_thread(prefill.wait, END_S)
        over_tcp.worker("decode").process.resume()
        await assert_whole(client, stream, computing)
        await client.wait_rest("decode")

    run_client(over_tcp, body)
