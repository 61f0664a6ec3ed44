"""What the router costs: its index at a million blocks, a choice among 1,000 workers, decisions over NATS.

Run: `python -m tests.perf.router`. The index: 64 workers, events of 16 to 64 blocks, 16 events a message (a
worker publishes at most 10 messages a second). Decisions end to end: a router process on a server of its own.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
import uvloop

from proto import keys, subjects
from proto.blockhash import block_hashes, block_salt
from proto.cards import WorkerCard
from proto.codec import decode, encode
from proto.events import BlocksStored, KvEvents
from proto.names import new_id
from proto.reports import LoadReport
from proto.requests import ROUTE_REPLIES, GenerateRequest, Routed, Sampling, Stopping
from proto.roles import Role, WorkerState
from proto.tokens import pack_tokens
from router.chooser import Ask, Chooser
from router.hashed_prompt import hash_prompt
from router.kv_index import KvIndex, block_keys
from router.lives import Lives
from router.predictions import Predictions, Promise
from router.settings import RouterSettings
from router.slots import Slots
from router.workers_view import WorkersView
from services.bus import Bus, BusSettings, open_bus
from services.directory import DirectorySettings, open_directory
from services.servers import run_etcd, run_nats
from tests.router.scripted_worker import KV, MODEL, run_worker

NUM_WORKERS = 64
NUM_BLOCKS = 1_048_576
EVENTS_A_MESSAGE = 16
NUM_FINDS = 2000
CROWD = 1000
NUM_CHOICES = 500
NUM_DECISIONS = 3000
AT_ONCE = 16
LIMIT_S = 300.0


def percentiles_us(took_s: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(took_s, n=100)
    return {"p50": round(cuts[49] * 1e6, 1), "p99": round(cuts[98] * 1e6, 1)}


def make_messages(hashes: bytes, events_a_message: int) -> list[KvEvents]:
    """Every block once; the messages of the workers take turns."""
    draw = random.Random(0)
    events: list[list[BlocksStored]] = [[] for _ in range(NUM_WORKERS)]
    start = turn = 0
    while start < len(hashes):
        end = start + 16 * draw.randint(16, 64)
        events[turn % NUM_WORKERS].append(BlocksStored(hashes[start:end]))
        start, turn = end, turn + 1
    messages = []
    for first in range(0, max(map(len, events)), events_a_message):
        for number, theirs in enumerate(events):
            piece = theirs[first : first + events_a_message]
            if piece:
                messages.append(KvEvents(f"w{number}", "life", first + 1, [*piece]))
    return messages


def apply_rate(messages: Iterable[KvEvents], index: KvIndex) -> float:
    began_s = time.perf_counter()
    for message in messages:
        index.apply_all(message.worker, message.events)
    return index.num_blocks / (time.perf_counter() - began_s)


def measure_index() -> dict[str, object]:
    hashes = os.urandom(16 * NUM_BLOCKS)
    messages = make_messages(hashes, EVENTS_A_MESSAGE)
    payloads = [encode(message) for message in messages]
    slots = Slots()
    before_bytes = psutil.Process().memory_info().rss
    index = KvIndex(slots)
    rate = apply_rate(messages, index)
    memory_bytes = psutil.Process().memory_info().rss - before_bytes
    by_bytes = apply_rate((decode(payload, KvEvents) for payload in payloads), KvIndex(Slots()))
    one_by_one = apply_rate(make_messages(hashes, 1), KvIndex(Slots()))
    return {
        "apply_blocks_per_s": round(rate),
        "apply_bytes_blocks_per_s": round(by_bytes),
        "apply_single_events_blocks_per_s": round(one_by_one),
        "memory_mib": round(memory_bytes / 2**20, 1),
        "find_us": {str(size): measure_finds(index, slots, messages, size) for size in (16, 128, 1024)},
    }


def measure_finds(
    index: KvIndex, slots: Slots, messages: list[KvEvents], num_blocks: int
) -> dict[str, dict[str, float]]:
    """Prompts of which a worker holds all, the first half, or nothing."""
    draw = random.Random(1)
    held: dict[str, bytearray] = {}
    for message in messages:
        held.setdefault(message.worker, bytearray()).extend(b"".join(one.hashes for one in message.events))
    caches = [bytes(cache) for cache in held.values()]

    def prompt(num_held: int) -> bytes:
        cache = draw.choice(caches)
        start = 16 * draw.randrange(len(cache) // 16 - num_held)
        return cache[start : start + 16 * num_held] + draw.randbytes(16 * (num_blocks - num_held))

    found = {}
    for kind, num_held in {"hit": num_blocks, "half": num_blocks // 2, "miss": 0}.items():
        took_s = []
        for _ in range(NUM_FINDS):
            prompt_keys = block_keys(prompt(num_held))
            began_s = time.perf_counter()
            index.match(prompt_keys).depths(slots.size)
            took_s.append(time.perf_counter() - began_s)
        found[kind] = percentiles_us(took_s)
    return found


class Crowd:
    """A router's own state with 1,000 workers, of which each holds a part of some of 50 shared prefixes."""

    def __init__(self) -> None:
        self._draw = random.Random(2)
        self._salt = block_salt(KV.weights_digest)
        slots, lives = Slots(), Lives()
        self._view = WorkersView(lives, slots, lambda _: True)
        self._index = KvIndex(slots)
        self._predictions = Predictions(10.0, 1024, slots)
        self._prefixes = [[self._draw.randrange(30_000) for _ in range(1600)] for _ in range(50)]
        for number in range(CROWD):
            worker = f"w{number}"
            lives.begin(worker, "life", 0.0)
            self._view.put_card(
                WorkerCard(worker, MODEL.name, Role.DECODE, 1, "life", WorkerState.READY, KV, 10_000, 64)
            )
            self._view.put_report(self._report(worker))
            for prefix in self._draw.sample(self._prefixes, 10):
                packed = pack_tokens(prefix[: 16 * self._draw.randint(1, 100)])
                hashes = b"".join(block_hashes(packed, KV.block_size, self._salt))
                self._index.apply(worker, BlocksStored(hashes))
        self._chooser = Chooser(
            RouterSettings(), slots, self._view, self._index, self._predictions, self._draw
        )

    def _report(self, worker: str) -> LoadReport:
        draw = self._draw
        return LoadReport(
            worker,
            MODEL.name,
            "life",
            1,
            Role.DECODE,
            WorkerState.READY,
            num_running=draw.randrange(48),
            waiting_tokens=draw.randrange(8000),
            max_sequences=64,
            total_blocks=10_000,
            free_blocks=draw.randrange(10_000),
            prefill_rate=draw.uniform(2000, 20_000),
            decode_step_s=draw.uniform(0.01, 0.05),
        )

    async def decide(self, number: int) -> float:
        """Seconds from a request of 2,000 tokens to its noted choice."""
        tokens = self._draw.choice(self._prefixes) + [self._draw.randrange(30_000) for _ in range(400)]
        request = a_request(pack_tokens(tokens))
        self._view.put_report(self._report(f"w{self._draw.randrange(CROWD)}"))
        began_s = time.perf_counter()
        prompt = await hash_prompt(request, KV)
        chosen = self._chooser.try_choose(MODEL, prompt, Ask(128))
        assert chosen is not None
        new_tokens = prompt.num_tokens - chosen.hit_tokens
        self._predictions.note(Promise("r", number, chosen.worker, new_tokens, prompt.keys, began_s))
        return time.perf_counter() - began_s


def a_request(prompt: bytes) -> GenerateRequest:
    return GenerateRequest(new_id(), 1, MODEL.name, "c", prompt, Sampling(), Stopping(128), deadline_s=60.0)


async def measure_choices() -> dict[str, object]:
    crowd = Crowd()
    took_s = [await crowd.decide(number) for number in range(NUM_CHOICES)]
    found = percentiles_us(took_s)
    return {f"decision_ms_{name}_1000_workers": round(us / 1e3, 3) for name, us in found.items()}


@asynccontextmanager
async def router_process(nats_url: str, etcd_url: str, ns: str) -> AsyncIterator[None]:
    flags = ["--bus-url", nats_url, "--directory-endpoints", etcd_url, "--mesh-ns", ns]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", "router", *flags, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def send(bus: Bus, ns: str, number: int) -> None:
    prompt = pack_tokens([number, *range(511)])
    subject = subjects.route(ns, MODEL.name)
    reply = ROUTE_REPLIES.decode(await bus.request(subject, encode(a_request(prompt)), 10.0))
    assert isinstance(reply, Routed), reply


async def measure_decisions() -> float:
    """Decisions a second of one router process, for 8 workers that accept at once."""
    ns = f"perf-{new_id()}"
    with tempfile.TemporaryDirectory() as folder:
        async with (
            asyncio.timeout(LIMIT_S),
            run_nats(Path(folder) / "nats") as nats,
            run_etcd(Path(folder) / "etcd") as etcd,
            open_bus(BusSettings(url=nats.url), "perf") as bus,
            open_directory(DirectorySettings(endpoints=[etcd.url])) as directory,
            AsyncExitStack() as stack,
        ):
            await directory.put(keys.model(ns, MODEL.name), encode(MODEL))
            for number in range(8):
                roomy = run_worker(
                    bus, directory, ns, f"w{number}", lambda worker: setattr(worker, "max_sequences", 10_000)
                )
                await stack.enter_async_context(roomy)
            await stack.enter_async_context(router_process(nats.url, etcd.url, ns))
            async with directory.watch(keys.routers(ns)) as changes:
                async for _ in changes:
                    if await directory.list(keys.routers(ns)):
                        break
            await send(bus, ns, NUM_DECISIONS)
            return await decision_rate(bus, ns)


async def decision_rate(bus: Bus, ns: str) -> float:
    numbers = iter(range(NUM_DECISIONS))

    async def client() -> None:
        for number in numbers:
            await send(bus, ns, number)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for place in range(AT_ONCE):
            tasks.create_task(client(), name=f"client-{place}")
    return NUM_DECISIONS / (time.perf_counter() - began_s)


async def measure() -> dict[str, object]:
    choices = await measure_choices()
    print(json.dumps(choices), flush=True)
    return {"decisions_per_s": round(await measure_decisions(), 1), **choices}


def main() -> None:
    index = measure_index()
    print(json.dumps(index), flush=True)
    print(json.dumps(index | uvloop.run(measure())))


if __name__ == "__main__":
    main()
