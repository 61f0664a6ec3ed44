"""The owner's rounds: when the blocks of a holder that is dead, or holds nothing, come back."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from proto import subjects
from proto.codec import encode
from proto.control import CONTROL_REQUESTS, AskHolding, Done, Holding
from proto.names import new_id
from services.bus import Bus, BusSettings, Delivery, open_bus
from services.servers import Server
from services.tasks import open_tasks
from tests.services.waiting import wait_for
from tests.workers.roles.lending import Lending, ask_of
from workers.control_client import ControlClient
from workers.roles.owned_job import JobEnd, OwnedJob
from workers.roles.patrol import ROUND_S, Patrol

MAX_QUARANTINE_S = 60.0
Body = Callable[[OwnedJob, Bus, str], Awaitable[None]]


def patrol_over(runner: asyncio.Runner, nats: Server, lending: Lending, body: Body) -> None:
    """Rounds over one grant, in quarantine, until `body` returns."""

    async def run() -> None:
        ns = f"test-{new_id()}"
        owned = lending.offer("r")
        lending.lender.grant(ask_of(owned))
        lending.engine.cancel("r")
        owned.settle(JobEnd.CANCELLED)
        lending.lender.close_job(owned)
        async with open_bus(BusSettings(url=nats.url), "owner") as bus, open_tasks() as tasks:
            patrol = Patrol(lending.lender, ControlClient(bus, ns), MAX_QUARANTINE_S, lambda: None)
            running = tasks.create_task(patrol.run(), name="patrol")
            await body(owned, bus, ns)
            running.cancel()

    runner.run(run())


def test_the_blocks_of_a_dead_holder_come_back_a_round_after_its_end_was_seen(
    runner: asyncio.Runner, nats_server: Server, lending: Lending
) -> None:
    async def body(owned: OwnedJob, bus: Bus, ns: str) -> None:
        assert owned.grant is not None
        (alive,) = owned.grant.processes
        owned.grant.began_s -= ROUND_S
        owned.grant.processes = [msgspec.structs.replace(alive, start_ticks=alive.start_ticks - 1)]
        began_s = time.monotonic()
        await wait_for(lambda: lending.lender.num_lent_blocks == 0)
        assert time.monotonic() - began_s >= 1.9 * ROUND_S

    patrol_over(runner, nats_server, lending, body)
    lending.assert_at_rest()


@pytest.mark.parametrize("incarnation", ["life of ann", "another life"])
def test_only_the_word_of_the_holder_itself_brings_its_blocks_back(
    runner: asyncio.Runner, nats_server: Server, lending: Lending, incarnation: str
) -> None:
    num_asked = 0

    async def body(owned: OwnedJob, bus: Bus, ns: str) -> None:
        waiting: asyncio.Queue[Delivery] = asyncio.Queue()
        await bus.subscribe(subjects.worker_control(ns, "ann"), waiting.put_nowait)

        async def answer() -> None:
            nonlocal num_asked
            while True:
                delivery = await waiting.get()
                is_asked = isinstance(CONTROL_REQUESTS.decode(delivery.payload), AskHolding)
                num_asked += is_asked
                await delivery.respond(encode(Holding(incarnation, []) if is_asked else Done()))

        async with open_tasks() as tasks:
            answering = tasks.create_task(answer(), name="ann")
            if incarnation == "life of ann":
                await wait_for(lambda: lending.lender.num_lent_blocks == 0)
            else:
                await wait_for(lambda: num_asked == 2)
                assert lending.lender.grants.num_quarantined_blocks == 3
            answering.cancel()

    patrol_over(runner, nats_server, lending, body)
    for grant in lending.lender.grants.all():
        lending.lender.end_grant(grant.granted.grant, "the test ends")
    lending.assert_at_rest()
