"""A mesh without engines: cards and beats as a test has them, and workers that obey orders if they may."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from proto import keys, subjects
from proto.cards import KvClass, WorkerCard
from proto.codec import decode, encode
from proto.reports import Beat, LoadReport
from proto.roles import Order, Role, WorkerState
from proto.traffic import ModelTraffic
from services.bus import Bus, BusSettings, open_bus
from services.directory import Changed, Directory, DirectorySettings, Entry, Listed, open_directory
from services.servers import Server
from services.tasks import open_tasks

MODEL = "org/m"
PREFILL_RATE = 1000.0
BASE_S, SEQUENCE_S, PLACES = 0.01, 0.001, 32
BEAT_S = 0.05


class Rates(msgspec.Struct, frozen=True):
    """What clients ask for. Units: a second."""

    requests: float
    prompt_tokens: float
    output_tokens: float


IDLE = Rates(0.0, 0.0, 0.0)


class ScriptedMesh:
    """Workers and a frontend. `obeys`: whether who is ordered begins its new role, or only drains."""

    def __init__(self, bus: Bus, directory: Directory, ns: str, roles: dict[str, Role]) -> None:
        self.rates = IDLE
        self.obeys = True
        self.silent: set[str] = set()
        self.orders: list[Order] = []
        self._bus = bus
        self._directory = directory
        self._ns = ns
        self.cards = {name: _card(name, role) for name, role in roles.items()}
        self._asked = [0.0, 0.0, 0.0]
        self._asked_s = time.monotonic()
        self._news = asyncio.Event()

    def num(self, role: Role) -> int:
        return sum(card.role is role for card in self.cards.values())

    def states(self) -> set[WorkerState]:
        return {card.state for card in self.cards.values()}

    async def run(self) -> None:
        async with open_tasks() as tasks:
            tasks.create_task(self._beat(), name="beats")
            tasks.create_task(self._follow(), name="orders")

    async def put_cards(self) -> None:
        for card in self.cards.values():
            await self._put(card)

    async def _put(self, card: WorkerCard) -> None:
        self.cards[card.worker] = card
        await self._directory.own(keys.worker(self._ns, card.worker), encode(card))

    async def _beat(self) -> None:
        while True:
            for name in self.cards.keys() - self.silent:
                await self._bus.publish(subjects.beat(self._ns, name), encode(self._report(name)))
            beat = Beat("f", "frontend", "life", traffic=[self._traffic()])
            await self._bus.publish(subjects.beat(self._ns, "f"), encode(beat))
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._news.wait()
            self._news.clear()

    def _traffic(self) -> ModelTraffic:
        now_s = time.monotonic()
        passed_s, self._asked_s = now_s - self._asked_s, now_s
        rates = (self.rates.requests, self.rates.prompt_tokens, self.rates.output_tokens)
        self._asked = [asked + passed_s * rate for asked, rate in zip(self._asked, rates, strict=True)]
        requests, prompt_tokens, output_tokens = map(round, self._asked)
        return ModelTraffic(
            MODEL,
            num_begun=requests,
            num_ended=requests,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            answer_tokens=output_tokens,
        )

    def _report(self, name: str) -> LoadReport:
        card = self.cards[name]
        is_decode = card.role is Role.DECODE
        running = 1 + int(name.rpartition("-")[2]) % 4
        return LoadReport(
            worker=name,
            model=MODEL,
            incarnation=card.incarnation,
            epoch=card.epoch,
            role=card.role,
            state=card.state,
            num_running=running if is_decode else 0,
            max_sequences=PLACES,
            prefill_rate=PREFILL_RATE,
            decode_step_s=BASE_S + SEQUENCE_S * running if is_decode else 0.0,
        )

    async def _follow(self) -> None:
        async with self._directory.watch(keys.orders(self._ns)) as changes:
            async for change in changes:
                if isinstance(change, Listed):
                    for entry in change.entries:
                        await self._obey(entry)
                elif isinstance(change, Changed):
                    await self._obey(change.entry)
                else:
                    card = self.cards[keys.last_part(change.key)]
                    await self._put(msgspec.structs.replace(card, state=WorkerState.READY))
                self._news.set()

    async def _obey(self, entry: Entry) -> None:
        order = decode(entry.value, Order)
        card = self.cards[order.worker]
        if order.epoch <= card.epoch:
            return
        self.orders.append(order)
        await self._put(msgspec.structs.replace(card, state=WorkerState.DRAINING))
        if self.obeys:
            await self.fulfil(order)

    async def fulfil(self, order: Order) -> None:
        card = self.cards[order.worker]
        await self._put(
            msgspec.structs.replace(card, role=order.role, epoch=order.epoch, state=WorkerState.READY)
        )
        self._news.set()


def _card(name: str, role: Role) -> WorkerCard:
    kv_class = KvClass("digest", "float32", 16)
    return WorkerCard(name, MODEL, role, 1, "life", WorkerState.READY, kv_class, 64, PLACES)


@asynccontextmanager
async def open_scripted_mesh(
    nats: Server, etcd: Server, ns: str, *, prefill: int, decode_workers: int
) -> AsyncIterator[ScriptedMesh]:
    names = [f"w-{index}" for index in range(prefill + decode_workers)]
    roles = {name: Role.PREFILL if index < prefill else Role.DECODE for index, name in enumerate(names)}
    async with (
        open_bus(BusSettings(url=nats.url), "scripted") as bus,
        open_directory(DirectorySettings(endpoints=[etcd.url])) as directory,
        open_tasks() as tasks,
    ):
        mesh = ScriptedMesh(bus, directory, ns, roles)
        await mesh.put_cards()
        running = tasks.create_task(mesh.run(), name="scripted mesh")
        try:
            yield mesh
        finally:
            running.cancel()
