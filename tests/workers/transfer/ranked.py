"""Workers of many ranks, all in this process: a pool, an agent and a thread for each rank, and the KV of one
model dealt out over them. Followers are ordered over links, as if they had processes of their own."""

import mmap
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import numpy as np
import numpy.typing as npt

from proto.control import Granted
from proto.errors import KvmeshError
from proto.jobs import Landing
from proto.layout import HeadRange, LayerRange, PoolLayout
from proto.names import new_id
from tests.workers.transfer.scene import LIMIT_S
from workers.ranks.far_transfers import FarTransfers
from workers.ranks.link import Link
from workers.ranks.messages import OpenTransfers
from workers.ranks.ordered_transfers import OrderedTransfers
from workers.roles.proof import own_identity
from workers.transfer.agents import Agents
from workers.transfer.opened_rank import open_rank
from workers.transfer.own_memory import HiddenPool, OwnMemory, OwnRank
from workers.transfer.peers import Peer, Peers
from workers.transfer.push import Push
from workers.transfer.staging import StagingSize
from workers.transfer.transfer_thread import TransferThread
from workers.transfer.transfers import Transfer

NUM_BLOCKS, BLOCK_SIZE, NUM_LAYERS, NUM_HEADS, HEAD_DIM = 8, 16, 5, 4, 8
SEQUENCE_BLOCKS = [4, 1, 6, 2]
"""Those of a sequence of 56 tokens, the first 16 of which the owner of `GRANT` has."""
NUM_TOKENS = 56
GRANT = Granted("grant", "job", BLOCK_SIZE, NUM_TOKENS, [7, 0, 5])

Kv = npt.NDArray[np.float32]
Shares = Sequence[tuple[LayerRange, HeadRange]]

_LAYERS = {1: [LayerRange(0, NUM_LAYERS)], 2: [LayerRange(0, 3), LayerRange(3, 2)]}
_HEADS = {
    1: [HeadRange(0, NUM_HEADS)],
    2: [HeadRange(0, 2), HeadRange(2, 2)],
    8: [HeadRange(rank // 2, 1) for rank in range(8)],
}


def share_out(tp: int, pp: int) -> Shares:
    """What each rank holds. With 8 ranks to a layer each head is held twice; layers are cut unevenly."""
    return [(layers, heads) for layers in _LAYERS[pp] for heads in _HEADS[tp]]


def random_kv(seed: int) -> Kv:
    """Of the whole model, a pool full: [block, head, layer, k/v, place, dim]."""
    shape = (NUM_BLOCKS, NUM_HEADS, NUM_LAYERS, 2, BLOCK_SIZE, HEAD_DIM)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class RankPool:
    """The part of the KV that one rank holds, in memory of its own."""

    def __init__(self, layers: LayerRange, heads: HeadRange) -> None:
        self._layers = slice(layers.first, layers.end)
        self._heads = slice(heads.first, heads.end)
        shape = (NUM_BLOCKS, heads.num_heads, layers.num_layers, 2, BLOCK_SIZE, HEAD_DIM)
        memory = mmap.mmap(-1, 4 * int(np.prod(shape)))
        self.kv: Kv = np.frombuffer(memory, dtype=np.float32).reshape(shape)
        self.layout = PoolLayout(
            address=self.kv.ctypes.data,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            first_layer=layers.first,
            num_layers=layers.num_layers,
            first_head=heads.first,
            num_heads=heads.num_heads,
            head_dim=HEAD_DIM,
            dtype="float32",
            item_bytes=4,
        )

    def part_of(self, kv: Kv) -> Kv:
        return kv[:, self._heads, self._layers]


class RankedWorker:
    """One worker. `landings` are the notices that its leader has heard, `moved` the bytes that each rank has
    moved itself; `parameters` are those of its followers' backends, and `stall_s` their patience. With
    `staging` its pools are hidden."""

    def __init__(self, name: str, shares: Shares, agents: Agents, staging: StagingSize | None = None) -> None:
        self.staging = staging
        self.name = name
        self.incarnation = new_id()
        self.pools = [RankPool(layers, heads) for layers, heads in shares]
        self.landings: list[Landing] = []
        self.parameters: dict[str, str] = {}
        self.stall_s = LIMIT_S
        self.moved = [0] * len(shares)
        self.agents = agents

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Its memory is there for the body, and known to the others."""
        async with AsyncExitStack() as stack:
            leading = await stack.enter_async_context(self._lead())
            following = [
                await stack.enter_async_context(self.follow(rank)) for rank in range(1, len(self.pools))
            ]
            self.memory = OwnMemory([leading, *following])
            self.peers = Peers(self.memory, self.name, self.agents)
            self.agents.learn(self.memory.card(self.name, self.incarnation))
            yield

    @asynccontextmanager
    async def _lead(self) -> AsyncIterator[OwnRank]:
        agent_name = f"{self.name}.{self.incarnation}.0"
        with open_rank(agent_name, self.pools[0].layout, {}, self.staging) as opened:
            note_moved = partial(self._note_moved, 0)
            transfers = TransferThread(opened.transport, self.landings.append, note_moved, LIMIT_S)
            async with transfers.running() as agent:
                yield OwnRank(agent, own_identity(), transfers, opened.hidden)

    @asynccontextmanager
    async def follow(self, rank: int) -> AsyncIterator[OwnRank]:
        """The follower of this rank lives for the body."""
        ours, theirs = socket.socketpair()
        to_leader = Link(theirs, "leader", lambda: None)
        with OrderedTransfers(to_leader, self.pools[rank].layout), to_leader:
            async with self.ordering(rank, ours) as own:
                yield own

    @asynccontextmanager
    async def ordering(self, rank: int, end: socket.socket) -> AsyncIterator[OwnRank]:
        """A follower at the other end of the link moves for this rank."""

        def on_closed() -> None:
            transfers.close()

        to_follower = Link(end, f"rank {rank}", on_closed)
        transfers = FarTransfers(to_follower, partial(self._note_moved, rank))
        agent_name = f"{self.name}.{self.incarnation}.{rank}"
        opening = OpenTransfers(agent_name, self.parameters, self.stall_s, self.staging)
        hidden = None if self.staging is None else HiddenPool(self.pools[rank].layout, transfers.carry)
        with to_follower:
            async with transfers.running(opening) as agent:
                yield OwnRank(agent, own_identity(), transfers, hidden)

    def _note_moved(self, rank: int, transfer: Transfer, _: float) -> None:
        self.moved[rank] += transfer.num_bytes

    def lay(self, kv: Kv) -> None:
        """Its ranks hold this KV."""
        for pool in self.pools:
            pool.kv[:] = pool.part_of(kv)

    def holds(self, kv: Kv) -> bool:
        """Whether what its ranks hold is this KV, to the last bit of every block."""
        return all(np.array_equal(pool.kv, pool.part_of(kv)) for pool in self.pools)

    async def meet(self, other: "RankedWorker") -> Peer:
        return await self.peers.meet(other.name, other.incarnation)


@asynccontextmanager
async def open_workers(**shares: Shares) -> AsyncIterator[dict[str, RankedWorker]]:
    """Workers by name, which know each other and have not met."""
    async with open_staged_workers({}, **shares) as workers:
        yield workers


@asynccontextmanager
async def open_staged_workers(
    staging: Mapping[str, StagingSize], /, **shares: Shares
) -> AsyncIterator[dict[str, RankedWorker]]:
    """As `open_workers`; those named in `staging` have such."""
    agents = Agents()
    async with AsyncExitStack() as stack:
        workers = {}
        for name, share in shares.items():
            workers[name] = RankedWorker(name, share, agents, staging.get(name))
            await stack.enter_async_context(workers[name].living())
        yield workers


def begin_push(source: RankedWorker, peer: Peer) -> tuple[Push, list[KvmeshError]]:
    faults: list[KvmeshError] = []
    return Push(GRANT, peer, source.memory, faults.append), faults


def write_layer_by_layer(push: Push, source: RankedWorker) -> None:
    """As an engine does: each rank when it has computed a layer of its own."""
    for layer in range(NUM_LAYERS):
        for rank, pool in enumerate(source.memory.pools):
            if pool.first_layer <= layer < pool.layers.end:
                push.write(rank, 0, NUM_TOKENS, SEQUENCE_BLOCKS, LayerRange(layer, 1))
