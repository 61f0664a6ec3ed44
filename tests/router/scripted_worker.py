"""A worker as the router sees it, scripted: its card, load reports, KV events, and answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from proto import keys, subjects
from proto.blockhash import block_hashes, block_salt
from proto.cards import KvClass, ModelCard, TextFiles, WorkerCard
from proto.codec import decode, encode
from proto.control import CONTROL_REQUESTS, Cancel, ControlReply, Done, Snapshot, TakeSnapshot
from proto.errors import GoElsewhere, KvmeshError, to_fault
from proto.events import BlocksStored, KvEvent, KvEvents
from proto.reports import LoadReport
from proto.requests import Accepted, GenerateReply, Refused, RoutedRequest
from proto.roles import Role, WorkerState
from proto.tokens import pack_tokens
from services.bus import Bus, Delivery, Subscription
from services.directory import Directory
from workers.cache_mirror import CacheMirror

BLOCK = 16
KV = KvClass("digest", "float32", BLOCK)
MODEL = ModelCard("org/Tiny-1", KV, TextFiles("t"), context_tokens=65_536, vocab_size=100, eos_tokens=[1])
PAGE_HASHES = 4


def prompt_of(first: int, num_tokens: int) -> bytes:
    """A prompt unlike those with another first token."""
    return pack_tokens([first, *range(num_tokens - 1)])


def hashes_of(prompt: bytes) -> bytes:
    return b"".join(block_hashes(prompt, BLOCK, block_salt(KV.weights_digest)))


class ScriptedWorker:
    """Accepts what comes, unless `refusal` is set or it `is_mute`; its next report includes what it took,
    unless it `is_forgetful`."""

    def __init__(self, bus: Bus, directory: Directory, ns: str, name: str) -> None:
        self.name = name
        self.incarnation = f"{name}-life"
        self.state = WorkerState.READY
        self.load: dict[str, object] = {}
        self.max_sequences = 8
        self.taken: list[RoutedRequest] = []
        self.offered = 0
        self.cancelled: list[Cancel] = []
        self.num_snapshots = 0  # sent to their last page
        self.refusal: KvmeshError | None = None
        self.is_mute = False
        self.is_forgetful = False
        self.on_taken: Callable[[RoutedRequest], None] = lambda _: None
        self.mirror = CacheMirror(name, self.incarnation, PAGE_HASHES)
        self._bus = bus
        self._directory = directory
        self._ns = ns
        self._decisions: dict[str, int] = {}
        self._answers: asyncio.Queue[tuple[Delivery, GenerateReply | ControlReply]] = asyncio.Queue()
        self._told: asyncio.Queue[KvEvents] = asyncio.Queue()
        self._generate: Subscription | None = None

    async def subscribe(self) -> None:
        self._generate = await self._bus.subscribe(
            subjects.worker_generate(self._ns, self.name), self._on_generate
        )
        await self._bus.subscribe(subjects.worker_control(self._ns, self.name), self._on_control)

    async def unsubscribe(self) -> None:
        """Takes no more requests, without a word to anybody."""
        assert self._generate is not None
        await self._generate.close()

    async def register(self) -> None:
        card = WorkerCard(
            self.name, MODEL.name, Role.DECODE, 1, self.incarnation, self.state, KV, 1000, self.max_sequences
        )
        await self._directory.own(keys.worker(self._ns, self.name), encode(card))

    async def report(self) -> None:
        report = LoadReport(
            self.name,
            MODEL.name,
            self.incarnation,
            1,
            Role.DECODE,
            self.state,
            max_sequences=self.max_sequences,
            total_blocks=1000,
            free_blocks=1000,
            prefill_rate=1000.0,
            decode_step_s=0.001,
            last_event=self.mirror.number,
            decisions={} if self.is_forgetful else dict(self._decisions),
        )
        report = msgspec.structs.replace(report, **self.load)
        await self._bus.publish(subjects.beat(self._ns, self.name), encode(report))

    async def store(self, prompt: bytes, *, is_lost: bool = False) -> None:
        """Its cache takes the blocks of `prompt`; the event of it is published, or lost on the way."""
        message = self.mirror.tell([BlocksStored(hashes_of(prompt))])
        if not is_lost:
            await self._bus.publish(subjects.kv(self._ns, self.name), encode(message))

    def tell(self, events: list[KvEvent]) -> None:
        """Its cache has changed; events of it go out soon."""
        if events:
            self._told.put_nowait(self.mirror.tell(events))

    async def publish_told(self) -> None:
        """Without end."""
        while True:
            message = await self._told.get()
            await self._bus.publish(subjects.kv(self._ns, self.name), encode(message))

    def restart(self) -> None:
        """It has another life, and an empty cache."""
        self.incarnation += "-and-another"
        self.mirror = CacheMirror(self.name, self.incarnation, PAGE_HASHES)

    async def beat(self) -> None:
        """Ten reports a second, without end."""
        while True:
            await self.report()
            await asyncio.sleep(0.1)

    async def answer(self) -> None:
        """Without end."""
        while True:
            delivery, reply = await self._answers.get()
            await delivery.respond(encode(reply))
            self.num_snapshots += isinstance(reply, Snapshot) and reply.page.is_last

    def _on_generate(self, delivery: Delivery) -> None:
        self.offered += 1
        routed = decode(delivery.payload, RoutedRequest)
        if self.is_mute:
            return
        if self.state is not WorkerState.READY:
            self.refusal = GoElsewhere(worker=self.name, reason="draining")
        if self.refusal is not None:
            self._answers.put_nowait((delivery, Refused(to_fault(self.refusal))))
            return
        self.taken.append(routed)
        self._decisions[routed.decision.router] = routed.decision.number
        self._answers.put_nowait((delivery, Accepted(self.name)))
        self.on_taken(routed)

    def _on_control(self, delivery: Delivery) -> None:
        asked = CONTROL_REQUESTS.decode(delivery.payload)
        if isinstance(asked, TakeSnapshot):
            self._answers.put_nowait((delivery, Snapshot(self.mirror.snapshot(asked.page, asked.number))))
        elif isinstance(asked, Cancel):
            self.cancelled.append(asked)
            self._answers.put_nowait((delivery, Done()))


@asynccontextmanager
async def run_worker(
    bus: Bus,
    directory: Directory,
    ns: str,
    name: str,
    prepare: Callable[[ScriptedWorker], None] | None = None,
) -> AsyncIterator[ScriptedWorker]:
    """A worker that is subscribed, registered and beats, for the time of the body."""
    worker = ScriptedWorker(bus, directory, ns, name)
    if prepare is not None:
        prepare(worker)
    await worker.subscribe()
    async with asyncio.TaskGroup() as tasks:
        companions = [
            tasks.create_task(worker.answer(), name=f"{name}-answers"),
            tasks.create_task(worker.beat(), name=f"{name}-beats"),
            tasks.create_task(worker.publish_told(), name=f"{name}-events"),
        ]
        await worker.register()
        try:
            yield worker
        finally:
            for companion in companions:
                companion.cancel()
