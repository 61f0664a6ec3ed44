"""What it costs to move KV between workers that are sharded differently, beside workers sharded alike.

Run: `python -m tests.perf.layout`. Two processes and NIXL; every rank has a pool and a transfer thread. Each
round moves 128 blocks of 16 tokens of the default model's shape (TP2 to PP2: of one with 4 KV heads), drawn
anew, three times: from one rank to one rank, from a worker to one sharded like it, and to one that is not. A
time is from the beginning of the plan until the last byte lies at the target. `plan_share`: what of it was
planning, where that is most. `converted_vs_equal`: bandwidth of the conversion beside that from one rank to
one rank, where that is least; `converted_vs_alike_by_case`: beside that between workers of as many ranks that
are sharded alike. All are medians over rounds.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

import msgspec
import torch
import uvloop

from proto.cards import RankAgent
from proto.errors import KvmeshError
from proto.layout import PoolLayout
from proto.names import new_id
from services.models.folder import resolve_model
from tests.perf.transfer import MODEL, STALL_S, START_S
from tests.workers.forked import ForkedProcess
from workers.engine.pool_tensor import allocate_pool, describe_pool
from workers.model.config import ModelConfig, read_config
from workers.transfer.copy_plan import Copies, Span, pair_blocks, plan_copies
from workers.transfer.nixl_transport import NixlTransport
from workers.transfer.outcome import Outcome
from workers.transfer.rank_routes import plan_routes
from workers.transfer.transfer_thread import TransferThread
from workers.transfer.transfers import Transfer

NUM_TOKENS = 128 * 16
POOL_TOKENS = 160 * 16
NUM_ROUNDS = 15
CPU: Final = torch.device("cpu")


class Shard(NamedTuple):
    """What one rank holds."""

    first_layer: int
    num_layers: int
    first_head: int
    num_heads: int
    block_size: int = 16


ONE = [Shard(0, 30, 0, 3)]
ONE_64 = [Shard(0, 30, 0, 3, block_size=64)]
TWO_STAGES = [Shard(0, 16, 0, 3), Shard(16, 14, 0, 3)]
TWO_SHARDS = [Shard(0, 30, 0, 2), Shard(0, 30, 2, 1)]
TWO_SHARDS_OF_4_HEADS = [Shard(0, 30, 0, 2), Shard(0, 30, 2, 2)]
TWO_STAGES_OF_4_HEADS = [Shard(0, 16, 0, 4), Shard(16, 14, 0, 4)]
CONVERSIONS = {
    "PP2 (16/14) to one rank": (TWO_STAGES, ONE),
    "one rank to TP2 (2/1)": (ONE, TWO_SHARDS),
    "TP2 (2/1) to one rank": (TWO_SHARDS, ONE),
    "TP2 to PP2, 4 heads": (TWO_SHARDS_OF_4_HEADS, TWO_STAGES_OF_4_HEADS),
    "blocks of 16 to 64": (ONE, ONE_64),
    "blocks of 64 to 16": (ONE_64, ONE),
}


@dataclass(frozen=True)
class Rank:
    """A pool in this process, every page of it touched, and what moves KV in and out of it."""

    memory: torch.Tensor
    agent: RankAgent
    transfers: TransferThread

    @property
    def pool(self) -> PoolLayout:
        return self.agent.pool


@asynccontextmanager
async def open_ranks(config: ModelConfig, shards: Sequence[Shard]) -> AsyncIterator[list[Rank]]:
    async with AsyncExitStack() as stack:
        ranks = []
        for shard in shards:
            held = msgspec.structs.replace(config, num_layers=shard.num_layers, num_kv_heads=shard.num_heads)
            num_blocks = POOL_TOKENS // shard.block_size
            memory = allocate_pool(held, num_blocks, shard.block_size, CPU, torch.float32)
            memory.fill_(1.0)
            pool = describe_pool(memory, shard.first_layer, shard.first_head)
            transport = NixlTransport(f"rank.{new_id()}", pool)
            transfers = TransferThread(
                transport, lambda landing: None, lambda transfer, took_s: None, STALL_S
            )
            ranks.append(Rank(memory, await stack.enter_async_context(transfers.running()), transfers))
        yield ranks


def run_targets(link: Connection, config: ModelConfig, shards: Sequence[Shard]) -> None:
    """The other process: says how its ranks are reached, and keeps looking until it is told to end."""

    async def serve() -> None:
        async with open_ranks(config, shards) as ranks:
            for rank in ranks:
                rank.transfers.expect(1)
            link.send(msgspec.msgpack.encode([rank.agent for rank in ranks]))
            await asyncio.to_thread(link.recv)

    uvloop.run(serve())


class Took(NamedTuple):
    plan_s: float
    total_s: float


class Worker:
    """The source worker, and the drawing of blocks."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks
        self._random = random.Random(0)

    async def meet(self, agents: Sequence[RankAgent]) -> None:
        for rank in self._ranks:
            for agent in agents:
                met = Outcome(asyncio.get_running_loop())
                rank.transfers.add_peer(agent.agent, agent.metadata, met.settle)
                assert await met.wait() is None

    async def move(self, targets: Sequence[RankAgent]) -> Took:
        """As many blocks as hold `NUM_TOKENS` tokens go from every rank to every rank that has their KV."""
        sources, pools = tuple(rank.pool for rank in self._ranks), tuple(target.pool for target in targets)
        span = Span(0, NUM_TOKENS, self._draw(sources[0]), self._draw(pools[0]))
        began_s = time.perf_counter()
        routes = plan_routes(sources, pools)
        plans = [
            plan_copies(
                sources[route.source],
                pools[route.target],
                pair_blocks(sources[route.source], pools[route.target], span),
                route.layers,
                route.heads,
            )
            for route in routes
        ]
        planned_s = time.perf_counter()
        ends = [
            self._submit(self._ranks[route.source], targets[route.target], copies)
            for route, copies in zip(routes, plans, strict=True)
        ]
        assert [await end.wait() for end in ends] == [None] * len(ends)
        return Took(planned_s - began_s, time.perf_counter() - began_s)

    def _draw(self, pool: PoolLayout) -> list[int]:
        return self._random.sample(range(pool.num_blocks), NUM_TOKENS // pool.block_size)

    def _submit(self, rank: Rank, target: RankAgent, copies: Copies) -> Outcome:
        over = Outcome(asyncio.get_running_loop())

        def on_refused() -> None:
            over.settle(KvmeshError())

        rank.transfers.submit(
            Transfer("WRITE", target.agent, copies, target.pool.device, lambda: True, on_refused, over.settle)
        )
        return over


@dataclass(frozen=True)
class Measured:
    plan_share: float
    vs_equal: float
    vs_alike: float


async def measure(config: ModelConfig, source: Sequence[Shard], target: Sequence[Shard]) -> Measured:
    whole = Shard(0, 30, 0, max(shard.first_head + shard.num_heads for shard in source))
    link, theirs = Pipe()
    process = ForkedProcess("targets", run_targets, theirs, config, [whole, *source, *target])
    try:
        async with open_ranks(config, [whole, *source]) as ranks:
            assert link.poll(START_S), "the other process says nothing"
            agents = msgspec.msgpack.decode(link.recv(), type=list[RankAgent])
            one, many = Worker(ranks[:1]), Worker(ranks[1:])
            await one.meet(agents[:1])
            await many.meet(agents[1:])
            num_ranks = len(ranks)
            moves = ((one, agents[:1]), (many, agents[1:num_ranks]), (many, agents[num_ranks:]))
            rounds = [[await worker.move(to) for worker, to in moves] for _ in range(NUM_ROUNDS + 1)][1:]
    finally:
        process.close()
    return Measured(
        max(
            statistics.median(took.plan_s / took.total_s for took in like)
            for like in zip(*rounds, strict=True)
        ),
        statistics.median(equal.total_s / converted.total_s for equal, _, converted in rounds),
        statistics.median(alike.total_s / converted.total_s for _, alike, converted in rounds),
    )


async def measure_all(config: ModelConfig) -> dict[str, Measured]:
    found = {}
    for name, (source, target) in CONVERSIONS.items():
        each = found[name] = await measure(config, source, target)
        ratios = f"{each.vs_equal:.2f} of one rank to one, {each.vs_alike:.2f} of sharded alike"
        print(f"{name}: {ratios}; planning {each.plan_share:.3f}", flush=True)
    return found


def main() -> None:
    found = uvloop.run(measure_all(read_config(resolve_model(MODEL).path)))
    worst = min(found, key=lambda name: found[name].vs_equal)
    said = {
        "plan_share": round(max(each.plan_share for each in found.values()), 4),
        "converted_vs_equal": round(found[worst].vs_equal, 3),
        "worst": worst,
        "converted_vs_equal_by_case": {name: round(each.vs_equal, 3) for name, each in found.items()},
        "converted_vs_alike_by_case": {name: round(each.vs_alike, 3) for name, each in found.items()},
        "plan_share_by_case": {name: round(each.plan_share, 4) for name, each in found.items()},
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
