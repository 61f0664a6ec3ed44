"""A worker is ready once it knows who else is there: its first prompt goes where all later ones go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proto import keys, subjects
from proto.cards import AgentCard, ProcessIdentity
from proto.codec import encode
from proto.names import new_id
from proto.reports import BEATS, Beat
from services.bus import Bus, BusSettings, open_bus
from services.directory import Directory, DirectorySettings, open_directory
from services.liveness import BeatSettings, watch_beats
from services.servers import Server
from services.tasks import open_tasks
from tests.services.waiting import wait_for
from workers.acquaintance import Acquaintance
from workers.transfer.agents import Agents

NOBODY_BEATS_S = 60.0


@asynccontextmanager
async def meeting(
    nats: Server, etcd: Server, ns: str, others: list[str], patience_s: float
) -> AsyncIterator[tuple[Acquaintance, Bus]]:
    """A newcomer where the directory lists the `others`."""
    async with (
        open_bus(BusSettings(url=nats.url), "newcomer") as bus,
        open_directory(DirectorySettings(endpoints=[etcd.url])) as directory,
        watch_beats(bus, ns, BeatSettings(), BEATS.decode) as liveness,
        open_tasks() as tasks,
    ):
        for other in others:
            await list_worker(directory, ns, other)
        agents = Agents()
        acquaintance = Acquaintance(agents, liveness, patience_s)
        lives = [tasks.create_task(life) for life in (agents.follow(directory, ns), acquaintance.run())]
        yield acquaintance, bus
        for life in lives:
            life.cancel()


async def list_worker(directory: Directory, ns: str, worker: str) -> None:
    card = AgentCard(worker, new_id(), ProcessIdentity("boot", "pid:[1]", 1, 1), [])
    await directory.own(keys.agent(ns, worker), encode(card))


def test_a_newcomer_is_not_ready_before_it_has_heard_all_who_are_there(
    nats_server: Server, etcd_server: Server, namespace: str
) -> None:
    async def run() -> None:
        async with meeting(nats_server, etcd_server, namespace, ["ann", "ben"], NOBODY_BEATS_S) as (
            newcomer,
            bus,
        ):
            await wait_for(lambda: newcomer.obstacle == "it has not heard ann, ben yet")
            await bus.publish(subjects.beat(namespace, "ann"), encode(Beat("ann", "worker", "life")))
            await wait_for(lambda: newcomer.obstacle == "it has not heard ben yet")
            await bus.publish(subjects.beat(namespace, "ben"), encode(Beat("ben", "worker", "life")))
            await wait_for(lambda: newcomer.obstacle == "")

    asyncio.run(run())


def test_a_dead_worker_that_is_still_listed_holds_up_nobody(
    nats_server: Server, etcd_server: Server, namespace: str
) -> None:
    async def run() -> None:
        async with meeting(nats_server, etcd_server, namespace, ["dead"], 0.1) as (newcomer, _):
            await wait_for(lambda: newcomer.obstacle == "")

    asyncio.run(run())
