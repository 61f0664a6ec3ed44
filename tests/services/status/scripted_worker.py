"""A worker for `kvmesh status` to look at: a card in etcd, a beat on NATS, and what it answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proto import keys, subjects
from proto.cards import KvClass, WorkerCard
from proto.codec import encode
from proto.control import BlockHolding, Holdings
from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from services.bus import Bus, BusSettings, Delivery, open_bus
from services.directory import DirectorySettings, open_directory
from services.liveness import BeatSettings, send_beats
from services.servers import Server
from services.tasks import open_tasks

CARD = WorkerCard(
    worker="w-1",
    model="org/Model-1.5",
    role=Role.DECODE,
    epoch=3,
    incarnation="i-1",
    state=WorkerState.READY,
    kv_class=KvClass("digest", "float32", 16),
    num_blocks=64,
    max_sequences=8,
    host="here",
)
REPORT = LoadReport(
    worker="w-1",
    model="org/Model-1.5",
    incarnation="i-1",
    epoch=3,
    role=Role.DECODE,
    state=WorkerState.READY,
    num_running=2,
    num_waiting=1,
    total_blocks=64,
    free_blocks=60,
    hit_tokens=1,
    prompt_tokens=2,
    decode_step_s=0.1,
)
HOLDINGS = Holdings(
    granted=[BlockHolding("g-1", "w-2", 5, 1.5)],
    quarantined=[BlockHolding("g-0", "w-3", 2, 60.0)],
    pinned=[BlockHolding("p-1", "w-4", 3, 0.5)],
    free_blocks=50,
    total_blocks=64,
    active_blocks=7,
    cached_blocks=20,
    held=["g-9"],
)


@asynccontextmanager
async def scripted_worker(nats: Server, etcd: Server, ns: str) -> AsyncIterator[None]:
    """The worker is there for the time of the body, beside a `w-2` whose card cannot be read."""
    async with (
        open_bus(BusSettings(url=nats.url), "w-1") as bus,
        open_directory(DirectorySettings(endpoints=[etcd.url])) as directory,
        send_beats(bus, subjects.beat(ns, "w-1"), lambda: encode(REPORT), BeatSettings(interval_s=0.3)),
        _answering(bus, ns),
    ):
        await directory.own(keys.worker(ns, "w-1"), encode(CARD))
        await directory.own(keys.worker(ns, "w-2"), b"\xc1 of a later version")
        yield


@asynccontextmanager
async def _answering(bus: Bus, ns: str) -> AsyncIterator[None]:
    async with open_tasks() as tasks:

        def on_control(delivery: Delivery) -> None:
            answering.append(tasks.create_task(delivery.respond(encode(HOLDINGS)), name="answer"))

        answering: list[asyncio.Task[None]] = []
        subscription = await bus.subscribe(subjects.worker_control(ns, "w-1"), on_control)
        yield
        await subscription.close()
