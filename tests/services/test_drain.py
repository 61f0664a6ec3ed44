"""The wait of `kvmesh drain`: until nothing runs at the worker, and no longer than the worker lives."""

import asyncio

import pytest

from proto.codec import encode
from proto.errors import DeadlineExceeded, Disconnected
from proto.names import new_id
from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from proto.subjects import beat
from services.bus import BusSettings, open_bus
from services.drain import wait_drained
from services.liveness import BeatSettings, send_beats
from services.patience import open_wait
from services.servers import Server

LONG_S = 60.0


async def wait_beside(
    nats: Server, num_running: int, lives_s: float, limit_s: float, said: list[str] | None = None
) -> None:
    """`wait_drained`, while a worker reports for `lives_s` seconds that so many sequences run there; `said`
    takes what is told meanwhile."""
    ns, said = new_id(), [] if said is None else said
    report = LoadReport("w", "m", "life", 1, Role.DECODE, WorkerState.DRAINING, num_running=num_running)
    payload = encode(report)
    async with open_bus(BusSettings(url=nats.url), "test") as bus:

        async def live() -> None:
            async with send_beats(bus, beat(ns, "w"), lambda: payload, BeatSettings()):
                await asyncio.sleep(lives_s)

        living = asyncio.create_task(live(), name="worker")
        try:
            async with open_wait(said.append, "") as wait:
                await wait_drained(bus, ns, "w", limit_s, wait)
        finally:
            living.cancel()
            await asyncio.wait((living,))


def test_a_worker_where_nothing_runs_is_drained(nats_server: Server) -> None:
    asyncio.run(wait_beside(nats_server, 0, LONG_S, LONG_S))


def test_a_worker_that_dies_meanwhile_is_not_waited_for(nats_server: Server) -> None:
    async def run() -> None:
        async with asyncio.timeout(LONG_S / 2):
            with pytest.raises(Disconnected):
                await wait_beside(nats_server, 1, 0.1, LONG_S)

    asyncio.run(run())


def test_what_runs_on_is_told_meanwhile_and_beyond_the_limit(nats_server: Server) -> None:
    said: list[str] = []
    with pytest.raises(DeadlineExceeded):
        asyncio.run(wait_beside(nats_server, 3, LONG_S, 0.1, said))
    assert any(words.startswith("w drains: 3 left, after ") for words in said), said
