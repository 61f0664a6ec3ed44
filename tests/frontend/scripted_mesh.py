"""The other side of the bus, as a test wants it: a router and workers that answer with scripted tokens.

Real messages on a real bus: what the frontend is told is what real ones would tell it. A script says for each
request which tokens come, in which frames; faults are set on a worker before the request.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from proto import keys, subjects
from proto.cards import KvClass, ModelCard, TextFiles, WorkerCard
from proto.codec import decode, encode
from proto.control import CONTROL_REQUESTS, Acknowledge, Cancel, Done, Resend, Resent
from proto.errors import Disconnected, Fault, InvalidRequest, KvmeshError, to_fault
from proto.logprobs import TokenLogprobs, pack_logprobs
from proto.reports import LoadReport
from proto.requests import Decision, GenerateRequest, Queued, Refused, Routed
from proto.roles import Role, WorkerState
from proto.streams import End, Frame, LiveOffset, LiveOffsets, Prefilled, StepFrames
from proto.tokens import count_tokens, pack_tokens, unpack_tokens
from services.bus import Bus, BusSettings, Delivery, open_bus
from services.directory import Directory, DirectorySettings, open_directory
from services.liveness import BeatSettings, send_beats
from services.objects import ObjectSettings, open_objects
from services.servers import Server
from services.tasks import open_tasks

BEATS = BeatSettings(interval_s=0.05, min_interval_s=0.05, lost_after_s=1.0)
KV = KvClass("digest", "float32", 16)

Answer = Callable[[GenerateRequest], list[int]]


@dataclass
class Script:
    """How a worker behaves. `step_s` 0: as fast as it can. `stop_at`: says no more after so many tokens.
    `tells`: log-probabilities, to who asks for them."""

    answer: Answer
    step_s: float = 0.002
    per_frame: int = 1
    drop: set[int] = field(default_factory=set)
    stop_at: int | None = None
    end: End = field(default_factory=lambda: End("stop", cached_tokens=3))
    accepts: bool = True
    tells: bool = True


def records_of(tokens: list[int], num_best: int | None) -> bytes:
    """What a scripted worker says tokens are worth, by their ids: a hundredth of it each, below 0."""
    if num_best is None:
        return b""
    best = [(token, -token / 100) for token in range(10, 10 + num_best)]
    return pack_logprobs([TokenLogprobs(-token / 100, 1 + token % 7, best) for token in tokens])


class ScriptedWorker:
    """Streams what its script says, keeps it for resends, and notes what it is told."""

    def __init__(self, mesh: "ScriptedMesh", name: str, script: Script) -> None:
        self.mesh = mesh
        self.name = name
        self.script = script
        self.state = WorkerState.READY
        self.requests: list[GenerateRequest] = []
        self.cancelled: list[tuple[str, int]] = []
        self.acknowledged: list[tuple[str, int]] = []
        self.resends: list[Resend] = []
        self.changed = asyncio.Event()
        self.live: dict[tuple[str, int], tuple[GenerateRequest, list[int], End | None]] = {}
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()

    async def wait_until(self, is_so: Callable[[], bool], limit_s: float = 30.0) -> None:
        async with asyncio.timeout(limit_s):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    def report(self) -> bytes:
        return encode(LoadReport(self.name, self.mesh.model, "life-1", 1, Role.DECODE, self.state))

    async def serve(self) -> None:
        subject = subjects.worker_control(self.mesh.ns, self.name)
        await self.mesh.bus.subscribe(subject, self._inbox.put_nowait)
        while True:
            delivery = await self._inbox.get()
            await self._control(delivery)
            self.changed.set()

    async def _control(self, delivery: Delivery) -> None:
        request = CONTROL_REQUESTS.decode(delivery.payload)
        reply: Done | Resent | Refused = Done()
        match request:
            case Cancel():
                self.cancelled.append((request.request, request.attempt))
            case Acknowledge():
                self.acknowledged += request.ends
                for end in request.ends:
                    self.live.pop(end, None)
            case Resend():
                self.resends.append(request)
                reply = self._resend(request)
            case _:
                raise AssertionError(f"{request} is not a frontend's")
        await delivery.respond(encode(reply))

    def _resend(self, ask: Resend) -> Resent | Refused:
        known = self.live.get((ask.request, ask.attempt))
        if known is None:
            return Refused(to_fault(InvalidRequest(field="request", reason="unknown")))
        _, tokens, end = known
        tail = tokens[ask.offset - known[0].offset :]
        return Resent(self._frame(known[0], ask.offset, tail, end))

    def _frame(self, request: GenerateRequest, offset: int, tokens: list[int], end: End | None) -> Frame:
        asked, prefilled = request.sampling, None
        if offset == 0 and asked.prompt_logprobs is not None:
            scores = records_of(unpack_tokens(request.prompt)[1:], asked.prompt_logprobs)
            prefilled = Prefilled(self.script.end.cached_tokens, prompt_logprobs=scores)
        records = records_of(tokens, asked.logprobs) if self.script.tells else b""
        key = (request.request, request.attempt)
        return Frame(*key, offset, pack_tokens(tokens), end, prefilled, logprobs=records)

    async def run(self, request: GenerateRequest) -> None:
        """One attempt, from acceptance to its end."""
        self.requests.append(request)
        self.changed.set()
        key = (request.request, request.attempt)
        sent: list[int] = []
        self.live[key] = (request, sent, None)
        await self._send(request, Frame(*key, request.offset))
        answer = self.script.answer(request)
        answer = answer[: request.stopping.max_tokens]
        for start in range(request.offset, len(answer), self.script.per_frame):
            if key in self.cancelled or (self.script.stop_at is not None and start >= self.script.stop_at):
                return
            tokens = answer[start : start + self.script.per_frame]
            is_last = start + len(tokens) == len(answer)
            sent += tokens
            end = self._end(request, answer) if is_last else None
            self.live[key] = (request, sent, end)
            if start not in self.script.drop:
                await self._send(request, self._frame(request, start, tokens, end))
            await asyncio.sleep(self.script.step_s)
        if len(answer) == request.offset:
            await self._send(request, Frame(*key, request.offset, b"", self.script.end))

    def _end(self, request: GenerateRequest, answer: list[int]) -> End:
        if self.script.end.fault is None and len(answer) == request.stopping.max_tokens:
            return End("length", cached_tokens=self.script.end.cached_tokens)
        return self.script.end

    async def _send(self, request: GenerateRequest, frame: Frame) -> None:
        await self._publish(request.client, StepFrames(self.name, "life-1", [frame]))

    async def send_offsets(self) -> None:
        for (request_id, attempt), (request, tokens, end) in self.live.items():
            offset = LiveOffset(request_id, attempt, request.offset + len(tokens), end is not None)
            await self._publish(request.client, LiveOffsets(self.name, "life-1", [offset]))

    async def _publish(self, client: str, message: StepFrames | LiveOffsets) -> None:
        with suppress(Disconnected):  # lost, as a real one's would be
            await self.mesh.bus.publish(subjects.stream(self.mesh.ns, client), encode(message))


class ScriptedMesh:
    """A router that gives each attempt to the first worker not excluded, or refuses with `refusal`."""

    def __init__(self, bus: Bus, directory: Directory, ns: str, model: str) -> None:
        self.bus = bus
        self.directory = directory
        self.ns = ns
        self.model = model
        self.workers: dict[str, ScriptedWorker] = {}
        self.lives: dict[str, asyncio.Task[None]] = {}
        self.refusal: KvmeshError | None = None
        self.queues = False
        self.cancelled_queued: list[tuple[str, int]] = []
        self.routed: list[GenerateRequest] = []
        self.changed = asyncio.Event()
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()

    async def route(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            delivery = await self._inbox.get()
            if delivery.subject == subjects.router_control(self.ns, "router-1"):
                cancel = decode(delivery.payload, Cancel)
                self.cancelled_queued.append((cancel.request, cancel.attempt))
                await delivery.respond(encode(Done()))
            else:
                await self._choose(delivery, tasks)
            self.changed.set()

    async def _choose(self, delivery: Delivery, tasks: asyncio.TaskGroup) -> None:
        request = decode(delivery.payload, GenerateRequest)
        self.routed.append(request)
        if self.queues:
            await delivery.respond(encode(Queued("router-1", 0.1)))
            return
        able = [worker for name, worker in self.workers.items() if name not in request.exclude]
        if self.refusal is not None or not able:
            fault = to_fault(self.refusal) if self.refusal else Fault("no_worker", {"model": self.model})
            await delivery.respond(encode(Refused(fault)))
            return
        worker = able[0]
        await delivery.respond(encode(Routed(Decision("router-1", 1, worker.name, 1, 0))))
        if worker.script.accepts and worker.name in self.lives:
            tasks.create_task(worker.run(request), name=f"run {request.request}")

    async def subscribe(self) -> None:
        await self.bus.subscribe(subjects.route_any(self.ns), self._inbox.put_nowait, queue="routers")
        control = subjects.router_control(self.ns, "router-1")
        await self.bus.subscribe(control, self._inbox.put_nowait)

    async def wait_until(self, is_so: Callable[[], bool], limit_s: float = 30.0) -> None:
        async with asyncio.timeout(limit_s):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    def kill(self, name: str) -> None:
        """The worker says nothing more; what it has sent has been sent."""
        self.workers.pop(name).script.stop_at = 0
        self.lives.pop(name).cancel()

    async def add_worker(self, name: str, script: Script, tasks: asyncio.TaskGroup) -> ScriptedWorker:
        worker = self.workers[name] = ScriptedWorker(self, name, script)
        card = WorkerCard(name, self.model, Role.DECODE, 1, "life-1", WorkerState.READY, KV, 64, 8)
        self.lives[name] = tasks.create_task(self._live(worker), name=f"worker {name}")
        await self.directory.own(keys.worker(self.ns, name), encode(card))
        return worker

    async def _live(self, worker: ScriptedWorker) -> None:
        subject = subjects.beat(self.ns, worker.name)
        async with send_beats(self.bus, subject, worker.report, BEATS), open_tasks() as tasks:
            tasks.create_task(worker.serve(), name="control")
            while True:
                await asyncio.sleep(0.5)
                await worker.send_offsets()


@asynccontextmanager
async def scripted_mesh(
    nats: Server, etcd: Server, ns: str, card: ModelCard, files: list[bytes], scripts: dict[str, Script]
) -> AsyncIterator[ScriptedMesh]:
    """A mesh without a frontend: bus, directory, object store with `files`, one router, workers by name."""
    settings = DirectorySettings(endpoints=[etcd.url])
    async with (
        open_bus(BusSettings(url=nats.url), "scripted") as bus,
        open_directory(settings) as directory,
        open_tasks() as tasks,
    ):
        mesh = ScriptedMesh(bus, directory, ns, card.name)
        objects = await open_objects(
            bus, ObjectSettings(storage="memory", max_bytes=8 * 2**20), subjects.objects_bucket(ns)
        )
        for data in files:
            await objects.put_if_absent(data)
        await directory.put(keys.model(ns, card.name), encode(card))
        await mesh.subscribe()
        routing = tasks.create_task(mesh.route(tasks), name="router")
        for name, script in scripts.items():
            await mesh.add_worker(name, script, tasks)
        try:
            yield mesh
        finally:
            for life in [routing, *mesh.lives.values()]:
                life.cancel()


def text_files(tokenizer: str, template: str) -> TextFiles:
    return TextFiles(tokenizer, template, "", "<|im_end|>")


def num_tokens(request: GenerateRequest) -> int:
    return count_tokens(request.prompt)
