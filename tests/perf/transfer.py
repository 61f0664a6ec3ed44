"""What moving KV costs: bandwidth beside a memcpy of as many bytes, and what is left when the compute ends.

Run: `python -m tests.perf.transfer`. Two processes and NIXL. Bandwidth: pieces of one size, scattered over
both pools, in writes of 16 MiB, which is what 128 tokens of a model of eight billion parameters take; then
the pieces that a worker of the default model pushes of a chunk. Each round of transfers has a round of memcpy
beside it, from and to other blocks of pools allocated alike, so that both find their memory as cold. What a
memcpy copies is listed before its clock starts; what a transfer moves is planned within its own, as in a
worker. Ratios are medians over rounds, with the quartiles and that of the two fastest rounds beside them: on
a busy machine the last says most. Then two workers with the default model: prompts of 2,048 tokens, each
prefilled in one and decoded in the other.
"""

import asyncio
import ctypes
import json
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import torch
import uvloop

from proto.cards import AgentCard, ProcessIdentity, RankAgent
from proto.control import Granted
from proto.errors import KvmeshError
from proto.layout import LayerRange, PoolLayout
from proto.names import new_id
from services.models.folder import resolve_model
from tests.perf.transfer_tail import measure_tails
from tests.workers.forked import ForkedProcess
from workers.engine.pool_tensor import allocate_pool
from workers.model.config import ModelConfig, read_config
from workers.roles.proof import own_identity
from workers.settings import WorkerSettings
from workers.transfer.copy_plan import BlockPairs, plan_copies
from workers.transfer.nixl_transport import NixlTransport
from workers.transfer.outcome import Outcome
from workers.transfer.own_memory import OwnMemory, OwnRank
from workers.transfer.peers import Peer
from workers.transfer.push import Push
from workers.transfer.transfer_thread import TransferThread

PIECE_KIB = (16, 64, 128, 256, 1024)
POST_BYTES = 16 * 2**20
ROUND_BYTES = 64 * 2**20
POOL_BYTES = 256 * 2**20
NUM_ROUNDS = 15
BLOCK_SIZE = 16
HEAD_DIM = 64
LAYER_KIB = 8  # keys and values of a head in a layer of a block, at float32
MODEL = "smollm2-135m"
START_S = 60.0
STALL_S = 60.0

_system = ctypes.PyDLL(None)  # a call takes 0.2 us beside the copying, where ctypes.memmove takes up to 0.8


@dataclass(frozen=True)
class Shape:
    """A pool's shape, and how it is pushed: so many layers of so many blocks a post, a piece a head."""

    config: ModelConfig
    num_layers: int
    num_blocks_a_post: int

    @property
    def piece_bytes(self) -> int:
        return self.num_layers * self.config.head_dim * 2 * BLOCK_SIZE * 4

    @property
    def post_bytes(self) -> int:
        return self.num_blocks_a_post * self.config.num_kv_heads * self.piece_bytes


class Pool:
    """A pool as a worker has it, every page of it touched."""

    def __init__(self, config: ModelConfig) -> None:
        num_blocks = POOL_BYTES // Shape(config, config.num_layers, 1).post_bytes
        self.memory = allocate_pool(config, num_blocks, BLOCK_SIZE, torch.device("cpu"), torch.float32)
        self.memory.fill_(1.0)
        self.layout = PoolLayout(
            address=self.memory.data_ptr(),
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            first_layer=0,
            num_layers=config.num_layers,
            first_head=0,
            num_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype="float32",
            item_bytes=4,
        )


def run_target(link: Connection, config: ModelConfig) -> None:
    """The other process: says how it is reached, and keeps looking until it is told to end."""

    async def serve() -> None:
        pool = Pool(config)
        transport = NixlTransport(f"target.{new_id()}", pool.layout)
        transfers = TransferThread(transport, lambda landing: None, lambda transfer, took_s: None, STALL_S)
        async with transfers.running() as rank:
            transfers.expect(1)
            link.send(msgspec.msgpack.encode(rank))
            await asyncio.to_thread(link.recv)

    uvloop.run(serve())


class Bench:
    """Transfers and memcpy of one shape, round by round."""

    def __init__(self, shape: Shape, own: Pool, beside: Pool, peer: Peer, memory: OwnMemory) -> None:
        self._shape = shape
        self._own = own
        self._beside = beside
        self._peer = peer
        self._memory = memory
        self._random = random.Random(0)
        self._num_posts = max(1, ROUND_BYTES // shape.post_bytes)

    async def run_round(self) -> tuple[float, float]:
        """Seconds of a round of memcpy, and of the round of transfers after it."""
        return self._copy_s(), await self._transfer_s()

    def _copy_s(self) -> float:
        layers = LayerRange(0, self._shape.num_layers)
        copies = [
            (ctypes.c_void_p(copy.target), ctypes.c_void_p(copy.source), ctypes.c_size_t(copy.num_bytes))
            for blocks in self._scattered()
            for copy in plan_copies(self._own.layout, self._beside.layout, blocks, layers)
        ]
        began_s = time.perf_counter()
        deque(starmap(_system.memcpy, copies), maxlen=0)
        return time.perf_counter() - began_s

    async def _transfer_s(self) -> float:
        """One push, chunk by chunk, as of a long prompt."""
        posts = list(self._scattered())
        push = self._push([block for blocks in posts for block in blocks.targets])
        began_s = time.perf_counter()
        self._write(push, posts)
        await push.wait_settled()
        return time.perf_counter() - began_s

    def _write(self, push: Push, posts: Sequence[BlockPairs]) -> None:
        size, layers = BLOCK_SIZE * self._shape.num_blocks_a_post, LayerRange(0, self._shape.num_layers)
        for number, blocks in enumerate(posts):
            push.write(0, number * size, (number + 1) * size, blocks.sources, layers)

    def _push(self, targets: Sequence[int]) -> Push:
        def fail(fault: KvmeshError) -> None:
            raise fault

        granted = Granted(new_id(), "job", 0, BLOCK_SIZE * len(targets), list(targets))
        return Push(granted, self._peer, self._memory, fail)

    def _scattered(self) -> Iterator[BlockPairs]:
        """Blocks of each post: no two side by side in one pool are so in the other."""
        num_blocks = self._shape.num_blocks_a_post
        for _ in range(self._num_posts):
            sources = self._random.sample(range(self._own.layout.num_blocks), num_blocks)
            targets = self._random.sample(range(self._own.layout.num_blocks), num_blocks)
            yield BlockPairs(sources, targets)


async def measure(name: str, shape: Shape) -> float:
    link, theirs = Pipe()
    target = ForkedProcess("target", run_target, theirs, shape.config)
    try:
        assert link.poll(START_S), "the other process says nothing"
        rank = msgspec.msgpack.decode(link.recv(), type=RankAgent)
        rounds = await _run_rounds(shape, rank)
    finally:
        target.close()
    low, middle, high = statistics.quantiles([copy_s / moved_s for copy_s, moved_s in rounds], n=4)
    best = min(copy_s for copy_s, _ in rounds) / min(moved_s for _, moved_s in rounds)
    num_pieces = shape.post_bytes // shape.piece_bytes
    pieces = f"{num_pieces} pieces of {shape.piece_bytes // 1024} KiB a post"
    print(f"{name}: {pieces}: {middle:.2f} ({low:.2f}-{high:.2f}); best to best {best:.2f}", flush=True)
    return round(middle, 3)


async def _run_rounds(shape: Shape, rank: RankAgent) -> list[tuple[float, float]]:
    own, beside = Pool(shape.config), Pool(shape.config)
    transport = NixlTransport(f"source.{new_id()}", own.layout)
    transfers = TransferThread(transport, lambda landing: None, lambda transfer, took_s: None, STALL_S)
    async with transfers.running() as agent:
        met = Outcome(asyncio.get_running_loop())
        transfers.add_peer(rank.agent, rank.metadata, met.settle)
        assert await met.wait() is None
        peer = Peer(AgentCard("target", new_id(), ProcessIdentity("", "", 0, 0), [rank]))
        memory = OwnMemory([OwnRank(agent, own_identity(), transfers)])
        bench = Bench(shape, own, beside, peer, memory)
        await bench.run_round()  # connects
        return [await bench.run_round() for _ in range(NUM_ROUNDS)]


def piece_shape(config: ModelConfig, kib: int) -> Shape:
    """Pieces of so many KiB: the first half of a block's layers."""
    num_layers = kib // LAYER_KIB
    one = msgspec.structs.replace(config, num_layers=2 * num_layers, num_kv_heads=1, head_dim=HEAD_DIM)
    return Shape(one, num_layers, max(1, POST_BYTES // (kib * 1024)))


def pushed_shape(config: ModelConfig) -> Shape:
    """A chunk of the default worker's step, in its groups of layers."""
    settings = WorkerSettings()
    layer_bytes = Shape(config, 1, 1).piece_bytes
    num_layers = min(config.num_layers, -(-settings.push_kib * 1024 // layer_bytes))
    return Shape(config, num_layers, settings.step_tokens // settings.block_size)


async def measure_bandwidth(config: ModelConfig) -> dict[str, object]:
    by_kib = {str(kib): await measure(f"{kib} KiB", piece_shape(config, kib)) for kib in PIECE_KIB}
    return {
        "bandwidth_vs_memcpy": by_kib,
        "bandwidth_vs_memcpy_pushed": await measure("as pushed", pushed_shape(config)),
    }


def main() -> None:
    model = resolve_model(MODEL).path
    found = uvloop.run(measure_bandwidth(read_config(model)))
    with tempfile.TemporaryDirectory() as folder:
        tails = asyncio.run(measure_tails(Path(folder), model))
    print(json.dumps(found | tails))


if __name__ == "__main__":
    main()
