"""Two workers of one core each under long prompts while others stream: a real engine with random weights.

Either both decode, with chunked prefill in chunks of one of three sizes, or one prefills for the other. Eight
streams run all the time, four to a worker or all eight with the one that decodes: answers of 400 tokens to
prompts of four, a new one as soon as one has ended. Each round of a pair is a while of streams alone, then a
while in which prompts of 1,024 tokens come as well, at moments that are the same for all pairs and wait for
nothing; together they would keep `LOAD` of one core busy. Rounds of the pairs take turns. A client on the bus
is router and frontend in one, and gives each worker as much.

ITL is over the gaps between tokens of streams, TTFT over the long prompts. A request is good, be it a
stream's answer or a long prompt's, if its first token came within `TTFT_PROMPTS` times what a long prompt
takes alone, and if the mean between its tokens was within `ITL_STEPS` times the median gap of all
undisturbed streams.
"""

import asyncio
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from proto.names import new_id
from proto.roles import Role
from services.replay.arrivals import steady
from services.replay.reading import Reading
from services.replay.report import Limits, Spread, make_report, spread
from services.servers import start_etcd, start_nats
from services.tasks import open_tasks
from tests.tiny_model import write_tiny
from tests.workers.harness import Client, Fleet, Stream, open_client, random_prompt

NUM_STREAMS = 8
STREAM_PROMPT, STREAM_ANSWER = 4, 400
LONG_PROMPT, LONG_ANSWER = 1024, 32
CHUNKS = (64, 128, 256)
LOAD = 0.6
QUIET_S, BUSY_S, NUM_ROUNDS = 3.0, 8.0, 3
NUM_ALONE = 5
TTFT_PROMPTS, ITL_STEPS = 4.0, 2.0
SHAPE: dict[str, Any] = {"hidden": 512, "heads": 8, "kv_heads": 1, "layers": 6, "context": 4096}
COMMON: dict[str, Any] = {
    "prefill_step_tokens": CHUNKS[-1],  # where nothing decodes, as always on the prefill worker
    "num_blocks": 2048,
    "max_sequences": 32,
    "grant_wait_s": 10.0,
}
ANSWER_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class PairOfWorkers:
    """Settings by worker, and which of them take requests."""

    name: str
    workers: Mapping[str, dict[str, Any]]
    decoders: Sequence[str]


SPLIT = PairOfWorkers(
    "split",
    {
        "decode": {"role": Role.DECODE, "step_tokens": CHUNKS[0]},
        "prefill": {"role": Role.PREFILL, "step_tokens": CHUNKS[0]},
    },
    ["decode"],
)
CHUNKED = [
    PairOfWorkers(
        f"chunks-{tokens}",
        {name: {"role": Role.DECODE, "step_tokens": tokens} for name in ("one", "two")},
        ["one", "two"],
    )
    for tokens in CHUNKS
]


PAIRS = [SPLIT, *CHUNKED]


@dataclass
class Seen:
    """What the rounds of one pair have shown, while prompts came but for `quiet_gaps_s`.

    Units: seconds; `num_tokens` that went through the two, of prompts too, in `busy_s`.
    """

    quiet_gaps_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    long: list[Reading] = field(default_factory=list)
    answers: list[Reading] = field(default_factory=list)
    num_tokens: int = 0
    busy_s: float = 0.0


class Round:
    """Streams, then streams and long prompts, at one pair."""

    def __init__(self, pair: PairOfWorkers, client: Client, seed: int) -> None:
        self._workers = list(pair.workers)
        self._decoders = pair.decoders
        self._client = client
        self._draw = random.Random(seed)
        self._seed = seed * 1_000_000
        self._streams: list[tuple[float, Stream]] = []

    async def run(self, long_per_s: float, seen: Seen) -> None:
        """Until every long prompt is answered; the streams go on until then."""
        async with open_tasks() as tasks:
            streaming = [
                tasks.create_task(self._stream(slot), name=f"stream {slot}") for slot in range(NUM_STREAMS)
            ]
            await asyncio.sleep(QUIET_S)
            begin_s = time.monotonic()
            seen.long += await self._ask_all(arrivals(long_per_s, self._draw))
            end_s = time.monotonic()
            for task in streaming:
                task.cancel()
        self._gather(begin_s, end_s, seen)
        for _, stream in self._streams:
            if stream.end is None:
                await self._client.cancel(stream)
        await self._client.wait_rest(*self._workers, limit_s=ANSWER_LIMIT_S)

    async def _stream(self, slot: int) -> None:
        """Answers one after the other, for ever; the first is cut, so that not all end together."""
        num_tokens = STREAM_ANSWER * (slot + 1) // NUM_STREAMS
        while True:
            began_s = time.monotonic()
            stream = await self._begin(slot, STREAM_PROMPT, num_tokens)
            self._streams.append((began_s, stream))
            await self._client.finish(stream, ANSWER_LIMIT_S)
            num_tokens = STREAM_ANSWER

    async def _begin(self, number: int, prompt_tokens: int, num_tokens: int) -> Stream:
        self._seed += 1
        prompt = random_prompt(prompt_tokens, self._seed)
        decoder = self._decoders[number % len(self._decoders)]
        return await self._client.begin(decoder, prompt, max_tokens=num_tokens, deadline_s=ANSWER_LIMIT_S)

    async def _ask_all(self, at_s: Sequence[float]) -> list[Reading]:
        begin_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(self._ask_long(number, begin_s + each_s), name=f"long prompt {number}")
                for number, each_s in enumerate(at_s)
            ]
        return [each.result() for each in asked]

    async def _ask_long(self, number: int, due_s: float) -> Reading:
        await asyncio.sleep(due_s - time.monotonic())
        stream = await self._begin(number, LONG_PROMPT, LONG_ANSWER)
        await self._client.finish(stream, ANSWER_LIMIT_S)
        return read(stream, due_s, LONG_PROMPT)

    def _gather(self, begin_s: float, end_s: float, seen: Seen) -> None:
        for began_s, stream in self._streams:
            for early_s, late_s in pairwise(stream.at_s):
                if late_s <= begin_s:
                    seen.quiet_gaps_s.append(late_s - early_s)
                elif begin_s <= early_s and late_s <= end_s:
                    seen.gaps_s.append(late_s - early_s)
            if stream.end is not None and begin_s <= began_s and stream.at_s[-1] <= end_s:
                seen.answers.append(read(stream, began_s, STREAM_PROMPT))
            seen.num_tokens += sum(begin_s <= at_s <= end_s for at_s in stream.at_s)
        seen.busy_s += end_s - begin_s


def read(stream: Stream, due_s: float, num_prompt: int) -> Reading:
    """A whole answer as a reading."""
    return Reading(
        due_s=due_s,
        sent_s=due_s,
        first_s=stream.at_s[0],
        last_s=stream.at_s[-1],
        ended_s=stream.at_s[-1],
        gaps_s=array("f", [late_s - early_s for early_s, late_s in pairwise(stream.at_s)]),
        num_prompt=num_prompt,
        num_out=len(stream.at_s),
        worker=stream.worker,
        prefill=stream.final.prefill,
    )


def arrivals(rate_per_s: float, draw: random.Random) -> list[float]:
    """Seconds from the begin, until `BUSY_S`."""
    return list(takewhile(lambda at_s: at_s < BUSY_S, steady(rate_per_s, draw)))


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one pair. Units: requests a second that kept the limits, none counted as one, so that ratios are
    finite; tokens a second of both cores together."""

    name: str
    quiet_itl_s: Spread
    itl_s: Spread
    ttft_s: Spread
    good_per_s: float
    tokens_per_s: float
    remote_share: float

    @property
    def itl_p99_ratio(self) -> float:
        """With long prompts over without."""
        return self.itl_s.p99 / self.quiet_itl_s.p99


def figures_of(name: str, seen: Seen, limits: Limits) -> Figures:
    long = make_report(name, seen.long, limits)
    answers = make_report(name, seen.answers, limits)
    num_good = sum(each.good_share * each.num_requests for each in (long, answers))
    quiet_itl_s, itl_s = spread(seen.quiet_gaps_s), spread(seen.gaps_s)
    assert quiet_itl_s is not None and itl_s is not None and long.ttft_s is not None
    num_tokens = seen.num_tokens + sum(reading.num_prompt + reading.num_out for reading in seen.long)
    return Figures(
        name=name,
        quiet_itl_s=quiet_itl_s,
        itl_s=itl_s,
        ttft_s=long.ttft_s,
        good_per_s=max(1, num_good) / seen.busy_s,
        tokens_per_s=num_tokens / seen.busy_s,
        remote_share=long.remote_share,
    )


def compare(split: Figures, chunked: Sequence[Figures]) -> dict[str, float]:
    """One that prefills for the other, against the best of the chunk sizes for each figure anew."""
    best = max(chunked, key=lambda each: each.good_per_s)
    return {
        "itl_p99_vs_undisturbed": split.itl_p99_ratio,
        "itl_p99_local_vs_undisturbed": min(each.itl_p99_ratio for each in chunked),
        "goodput_ratio": split.good_per_s / best.good_per_s,
        "ttft_p50_ratio": split.ttft_s.p50 / min(each.ttft_s.p50 for each in chunked),
        "ttft_p99_ratio": split.ttft_s.p99 / min(each.ttft_s.p99 for each in chunked),
        "tokens_per_s_per_core": split.tokens_per_s / 2,
        "tokens_per_s_per_core_local": best.tokens_per_s / 2,
        "itl_p50_ratio_without_prompts": split.quiet_itl_s.p50 / best.quiet_itl_s.p50,
    }


def told(figures: Figures) -> str:
    quiet_itl_s, itl_s, ttft_s = figures.quiet_itl_s, figures.itl_s, figures.ttft_s
    return (
        f"{figures.name:10s} ITL p50 {quiet_itl_s.p50 * 1e3:.1f} p99 {quiet_itl_s.p99 * 1e3:.1f} ms,"
        f" with prompts p50 {itl_s.p50 * 1e3:.1f} p99 {itl_s.p99 * 1e3:.1f} ms ({figures.itl_p99_ratio:.2f});"
        f" TTFT p50 {ttft_s.p50:.2f} p99 {ttft_s.p99:.2f} s, {figures.remote_share:.0%} remote;"
        f" {figures.good_per_s:.2f} good/s, {figures.tokens_per_s / 2:.0f} tokens/s a core"
    )


class Bench:
    """The pairs, ready, over one bus; only one of them has work at a time."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients
        self._seen = {pair.name: Seen() for pair in PAIRS}

    async def run(self) -> dict[str, float]:
        alone_s = statistics.median([await self._alone_s(pair) for pair in PAIRS])
        print(f"a prompt of {LONG_PROMPT} tokens alone: {alone_s:.2f} s", flush=True)
        for number in range(NUM_ROUNDS):
            for pair in PAIRS:
                await Round(pair, self._clients[pair.name], number).run(LOAD / alone_s, self._seen[pair.name])
        gaps_s = [gap_s for seen in self._seen.values() for gap_s in seen.quiet_gaps_s]
        limits = Limits(TTFT_PROMPTS * alone_s, ITL_STEPS * statistics.median(gaps_s))
        print(f"limits: TTFT {limits.ttft_s:.2f} s, mean ITL {limits.itl_s * 1e3:.1f} ms", flush=True)
        split, *chunked = [figures_of(name, seen, limits) for name, seen in self._seen.items()]
        for figures in (split, *chunked):
            print(told(figures), flush=True)
        return compare(split, chunked) | {"ttft_limit_s": limits.ttft_s, "itl_limit_s": limits.itl_s}

    async def _alone_s(self, pair: PairOfWorkers) -> float:
        """The fastest of a few: the first ones warm what they find cold."""
        client, took_s = self._clients[pair.name], []
        for number in range(NUM_ALONE * len(pair.decoders)):
            began_s = time.monotonic()
            prompt = random_prompt(LONG_PROMPT, -1 - number)
            decoder = pair.decoders[number % len(pair.decoders)]
            stream = await client.generate(decoder, prompt, max_tokens=1)
            took_s.append(stream.at_s[0] - began_s)
        return min(took_s)


@asynccontextmanager
async def clients_of_all(stack: ExitStack, folder: Path) -> AsyncIterator[dict[str, Client]]:
    """The workers of all pairs, ready, each pair a namespace of its own, and a client for each pair."""
    nats, etcd = start_nats(folder / "nats"), start_etcd(folder / "etcd")
    stack.callback(nats.stop)
    stack.callback(etcd.stop)
    model = write_tiny(folder / "model", **SHAPE)
    async with AsyncExitStack() as clients:
        found = {}
        for pair in PAIRS:
            fleet = Fleet(nats, etcd, f"perf-{pair.name}-{new_id()}", folder)
            stack.callback(fleet.close)
            for name, settings in pair.workers.items():
                fleet.start(name, model=model, **COMMON, **settings)
            await fleet.wait_ready(*pair.workers)
            client = found[pair.name] = await clients.enter_async_context(open_client(fleet, model.name))
            for name in pair.workers:
                await client.wait_report(name, lambda report: report.num_running == 0)
        yield found


async def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        async with clients_of_all(stack, Path(folder)) as clients:
            return await Bench(clients).run()
