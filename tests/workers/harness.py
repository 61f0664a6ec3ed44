"""Real worker processes, and a client on the bus that is their router and their frontend."""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

from proto import keys, subjects
from proto.codec import encode
from proto.constraints import Constraint
from proto.control import (
    CONTROL_REPLIES,
    Acknowledge,
    AskHoldings,
    Cancel,
    ControlReply,
    ControlRequest,
    Done,
    Holdings,
    Resend,
    Resent,
)
from proto.errors import Disconnected
from proto.logprobs import split_records
from proto.names import new_id
from proto.reports import BEATS, Beat, LoadReport
from proto.requests import (
    GENERATE_REPLIES,
    Accepted,
    Decision,
    GenerateReply,
    GenerateRequest,
    KvSource,
    RoutedRequest,
    Sampling,
    Stopping,
)
from proto.roles import Role
from proto.streams import (
    STREAM_MESSAGES,
    End,
    Frame,
    LiveOffset,
    LiveOffsets,
    PleaseMove,
    Prefilled,
    StepFrames,
)
from proto.tokens import pack_tokens, unpack_tokens
from services.admin import AdminSettings
from services.bus import Bus, BusSettings, Delivery, Subscription, open_bus
from services.directory import DirectorySettings, open_directory
from services.mesh_settings import MeshSettings
from services.process import run_process
from services.servers import Server, reserve_port
from tests.workers.forked import ForkedProcess
from tests.workers.hosts import ADDRESSES, enter_host
from workers.settings import WorkerSettings

BEAT_S = 0.25
LOST_AFTER_S = 1.0
DRAIN_LIMIT_S = 1.0
LEASE_TTL_S = 2
START_S = 60.0
LIMIT_S = 20.0
LOOK_S = 0.01
NUM_TRIES = 4

Reply = TypeVar("Reply")


def _as_it_is() -> None:
    """Nothing is done to the worker."""


def _run_worker(settings: WorkerSettings, log: str, host: str, spoil: Callable[[], None]) -> None:
    from workers.process import run_worker

    spoil()
    if host:
        enter_host(host)

    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    limit_s = settings.mesh.drain_limit_s
    sys.exit(run_process(lambda shutdown: run_worker(settings, shutdown), drain_limit_s=limit_s))


@dataclass
class Worker:
    """One worker process. What it said is in `log`."""

    name: str
    process: ForkedProcess
    admin_url: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def ailments(self) -> dict[str, str]:
        """Why the worker is not alive, as its port tells."""
        answer = httpx.get(f"{self.admin_url}/healthz", trust_env=False, timeout=LIMIT_S)
        reasons: dict[str, str] = answer.json()["reasons"]
        assert (answer.status_code == 503) == bool(reasons)
        return reasons

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric, summed over all labels but those given."""
        text = httpx.get(f"{self.admin_url}/metrics", trust_env=False, timeout=LIMIT_S).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@dataclass
class Fleet:
    """The workers of one namespace over shared servers."""

    nats: Server
    etcd: Server
    ns: str
    folder: Path
    workers: list[Worker] = field(default_factory=list)

    def worker(self, name: str) -> Worker:
        """The last one started under this name that has not ended, else the last one."""
        named = [worker for worker in reversed(self.workers) if worker.name == name]
        return next((worker for worker in named if worker.process.is_running), named[0])

    def start(
        self,
        name: str,
        role: Role,
        model: Path,
        host: str = "",
        drain_limit_s: float = DRAIN_LIMIT_S,
        lost_after_s: float = LOST_AFTER_S,
        lease_ttl_s: int = LEASE_TTL_S,
        bus_url: str = "",
        spoil: Callable[[], None] = _as_it_is,
        **settings: Any,
    ) -> Worker:
        """A worker that is still loading, see `wait_ready`; `host`: one of `tests.workers.hosts`; `bus_url`:
        where it finds the bus, if not at the server itself; `spoil` is called in its process, first."""
        admin = AdminSettings(host=ADDRESSES.get(host, "127.0.0.1"), port=reserve_port())
        life = WorkerSettings(
            mesh=MeshSettings(
                ns=self.ns, beat_s=BEAT_S, lost_after_s=lost_after_s, drain_limit_s=drain_limit_s
            ),
            bus=BusSettings(url=bus_url or self.nats.url),
            directory=DirectorySettings(endpoints=[self.etcd.url], lease_ttl_s=lease_ttl_s),
            admin=admin,
            name=name,
            role=role,
            model=str(model),
            **settings,
        )
        log = self.folder / f"{name}-{new_id()}.log"
        process = ForkedProcess(name, _run_worker, life, str(log), host, spoil)
        worker = Worker(name, process, f"http://{admin.host}:{admin.port}", log)
        self.workers.append(worker)
        return worker

    async def wait_ready(self, *names: str, limit_s: float = START_S) -> None:
        """Until workers of these names are in the directory."""
        wanted = set(names)

        async def are_there() -> bool:
            last = {worker.name: worker for worker in self.workers if worker.name in wanted}
            ended = [worker for worker in last.values() if not worker.process.is_running]
            assert not ended, ended[0].log
            entries = await directory.list(keys.workers(self.ns))
            return wanted <= {keys.last_part(entry.key) for entry in entries}

        async with open_directory(DirectorySettings(endpoints=[self.etcd.url])) as directory:
            await until("workers are ready", are_there, limit_s)

    def close(self) -> None:
        for worker in self.workers:
            worker.process.close()


async def until(
    what: str, is_so: Callable[[], Awaitable[bool]], limit_s: float = LIMIT_S, seen: object = ""
) -> None:
    """Waits for what nothing announces; `seen` is told as it is at the end, should it not have come so.

    Raises:
        AssertionError: not so within `limit_s`.
    """
    end_s = time.monotonic() + limit_s
    while not await is_so():
        assert time.monotonic() < end_s, f"not within {limit_s} s: {what}; {seen}"
        await asyncio.sleep(LOOK_S)


def random_prompt(num_tokens: int, seed: int) -> list[int]:
    """No special token of the tiny model is in it."""
    chosen = random.Random(seed)
    return [chosen.randrange(10, 500) for _ in range(num_tokens)]


@dataclass
class Stream:
    """One attempt, as its frames have come. After a gap nothing more is taken. `records` has one for each
    token, empty where none were asked for.

    Units: `at_s` seconds on the monotonic clock, when each of the tokens came; `taken_over_at` how many were
    there when its worker had taken it over.
    """

    worker: str
    request: str
    attempt: int
    offset: int
    tokens: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    prefilled: Prefilled | None = None
    at_s: list[float] = field(default_factory=list)
    num_frames: int = 0
    taken_over_at: int | None = None
    end: End | None = None
    fault: str = ""

    def take(self, frame: Frame) -> None:
        self.num_frames += 1
        if self.end is not None:
            self.fault = "a frame came after the end"
        elif frame.offset != self.offset + len(self.tokens):
            self.fault = "a frame is lost or came twice"
        else:
            tokens = unpack_tokens(frame.tokens)
            self.tokens += tokens
            self.records += split_records(frame.logprobs, len(tokens))
            self.prefilled = self.prefilled or frame.prefilled
            self.at_s += [time.monotonic()] * (len(self.tokens) - len(self.at_s))
            if frame.has_taken_over:
                self.taken_over_at = len(self.tokens)
            self.end = frame.end

    @property
    def final(self) -> End:
        assert self.end is not None
        return self.end


class Client:
    """A router and a frontend in one. `offsets` are the last live offsets by request and attempt, `wishes`
    what each worker that wants to let attempts go said last."""

    def __init__(self, bus: Bus, ns: str, model: str, name: str) -> None:
        self.name = name
        self.bus = bus
        self.reports: dict[str, LoadReport] = {}
        self.offsets: dict[tuple[str, int], LiveOffset] = {}
        self.wishes: dict[str, PleaseMove] = {}
        self._ns = ns
        self._model = model
        self._streams: dict[tuple[str, int], Stream] = {}
        self._changed = asyncio.Event()
        self._number = 0

    async def offer(
        self,
        worker: str,
        prompt: list[int],
        *,
        max_tokens: int = 8,
        request: str = "",
        attempt: int = 0,
        generated: list[int] | None = None,
        deadline_s: float = 60.0,
        epoch: int = 1,
        sampling: Sampling | None = None,
        source: KvSource | None = None,
        constraint: Constraint | None = None,
        ignore_eos: bool | None = None,
    ) -> tuple[GenerateReply, Stream]:
        """What the worker says to a request, and the stream of what it sends. Without a constraint an answer
        ends only where it is cut, if nothing else is said."""
        before = generated or []
        is_endless = constraint is None if ignore_eos is None else ignore_eos
        asked = GenerateRequest(
            request=request or new_id(),
            attempt=attempt,
            model=self._model,
            client=self.name,
            prompt=pack_tokens(prompt),
            sampling=sampling or Sampling(temperature=0.0),
            stopping=Stopping(max_tokens, ignore_eos=is_endless),
            deadline_s=deadline_s,
            offset=len(before),
            generated=pack_tokens(before),
            source=source,
            constraint=constraint,
        )
        stream = self.expect(worker, asked.request, attempt, len(before))
        self._number += 1
        routed = RoutedRequest(asked, Decision(self.name, self._number, worker, epoch, 0))
        subject = subjects.worker_generate(self._ns, worker)
        return GENERATE_REPLIES.decode(await self.bus.request(subject, encode(routed), LIMIT_S)), stream

    def expect(self, worker: str, request: str, attempt: int = 0, offset: int = 0) -> Stream:
        """The stream of an attempt, whose frames are taken from now on."""
        return self._streams.setdefault((request, attempt), Stream(worker, request, attempt, offset))

    async def begin(self, worker: str, prompt: list[int], **fields: Any) -> Stream:
        """As `offer`, of what is accepted."""
        reply, stream = await self.offer(worker, prompt, **fields)
        assert isinstance(reply, Accepted), reply
        return stream

    async def generate(self, worker: str, prompt: list[int], **fields: Any) -> Stream:
        """As `begin`, until its end, which is acknowledged."""
        stream = await self.begin(worker, prompt, **fields)
        await self.finish(stream)
        return stream

    async def finish(self, stream: Stream, limit_s: float = LIMIT_S) -> End:
        """Until the stream has ended; says so to its worker."""
        await self.wait(lambda: stream.end is not None or stream.fault != "", limit_s)
        assert not stream.fault
        await self.acknowledge(stream)
        return stream.final

    async def acknowledge(self, stream: Stream) -> None:
        await self.tell(stream.worker, Acknowledge([(stream.request, stream.attempt)]))

    async def cancel(self, stream: Stream) -> None:
        await self.tell(stream.worker, Cancel(stream.request, stream.attempt))

    async def resend(self, stream: Stream, offset: int = 0) -> Frame:
        asked = Resend(stream.request, stream.attempt, offset)
        return (await self.ask(stream.worker, asked, Resent)).frame

    async def tell(self, worker: str, request: ControlRequest) -> None:
        await self._ask_again(worker, request, Done)

    async def ask(self, worker: str, request: ControlRequest, kind: type[Reply]) -> Reply:
        reply = await self.control(worker, request)
        assert isinstance(reply, kind), reply
        return reply

    async def control(self, worker: str, request: ControlRequest) -> ControlReply:
        subject = subjects.worker_control(self._ns, worker)
        return CONTROL_REPLIES.decode(await self.bus.request(subject, encode(request), LIMIT_S))

    async def holdings(self, worker: str) -> Holdings:
        return await self._ask_again(worker, AskHoldings(), Holdings)

    async def _ask_again(self, worker: str, request: ControlRequest, kind: type[Reply]) -> Reply:
        """What may be said twice. Who was stopped connects anew: what was on its way is lost then."""
        for _ in range(NUM_TRIES - 1):
            try:
                async with asyncio.timeout(LIMIT_S / NUM_TRIES):
                    return await self.ask(worker, request, kind)
            except (TimeoutError, Disconnected):
                await self.bus.wait_connected(LIMIT_S)
        return await self.ask(worker, request, kind)

    async def wait_rest(self, *workers: str, limit_s: float = LIMIT_S) -> None:
        """Until every block of the workers is free, and none lent: with no new traffic. Who fails is told
        what is held, and where."""
        unrest: dict[str, Holdings] = {}

        async def are_at_rest() -> bool:
            held = {worker: await self.holdings(worker) for worker in workers}
            unrest.clear()
            unrest.update({worker: it for worker, it in held.items() if not is_at_rest(it)})
            return not unrest

        await until(f"all blocks of {workers} are free", are_at_rest, limit_s, seen=unrest)

    async def wait_report(self, worker: str, is_so: Callable[[LoadReport], bool]) -> None:
        """Until a report of the worker that comes from now on is so."""
        self.reports.pop(worker, None)
        await self.wait(lambda: worker in self.reports and is_so(self.reports[worker]))

    async def wait(self, is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Until what the messages to this client have brought is so."""
        async with asyncio.timeout(limit_s):
            while not is_so():
                await self._changed.wait()

    def on_stream(self, delivery: Delivery) -> None:
        message = STREAM_MESSAGES.decode(delivery.payload)
        if isinstance(message, StepFrames):
            for frame in message.frames:
                stream = self._streams.get((frame.request, frame.attempt))
                if stream is not None:
                    stream.take(frame)
        elif isinstance(message, PleaseMove):
            self.wishes[message.worker] = message
        elif isinstance(message, LiveOffsets):
            self.offsets = {(live.request, live.attempt): live for live in message.offsets}
        self._wake()

    def on_beat(self, delivery: Delivery) -> None:
        beat = BEATS.decode(delivery.payload)
        if isinstance(beat, LoadReport):
            self.reports[beat.worker] = beat
            self._wake()

    def _wake(self) -> None:
        """All who wait look again, each at its own condition."""
        self._changed.set()
        self._changed = asyncio.Event()


def is_at_rest(holdings: Holdings) -> bool:
    is_lent = holdings.granted or holdings.quarantined or holdings.pinned
    return holdings.free_blocks == holdings.total_blocks and not is_lent


class Frontend:
    """A client's presence: its subscription and its beat, each of which may end before the client."""

    def __init__(self, client: Client, stream: Subscription, beating: "asyncio.Task[None]") -> None:
        self.client = client
        self._stream = stream
        self._beating = beating

    async def stop_listening(self) -> None:
        await self._stream.close()

    def stop_beating(self) -> None:
        self._beating.cancel()


@asynccontextmanager
async def open_frontend(fleet: Fleet, model: str) -> AsyncIterator[Frontend]:
    name = f"client-{new_id()}"
    async with open_bus(BusSettings(url=fleet.nats.url), name) as bus, asyncio.TaskGroup() as tasks:
        client = Client(bus, fleet.ns, model, name)
        stream = await bus.subscribe(subjects.stream(fleet.ns, name), client.on_stream)
        await bus.subscribe(subjects.beat_any(fleet.ns), client.on_beat)
        beating = tasks.create_task(_beat(bus, fleet.ns, name), name="beats of a client")
        yield Frontend(client, stream, beating)
        beating.cancel()


@asynccontextmanager
async def open_client(fleet: Fleet, model: str) -> AsyncIterator[Client]:
    async with open_frontend(fleet, model) as frontend:
        yield frontend.client


async def _beat(bus: Bus, ns: str, name: str) -> None:
    while True:
        with suppress(Disconnected):
            await bus.publish(subjects.beat(ns, name), encode(Beat(name, "frontend", name)))
        await asyncio.sleep(BEAT_S)
