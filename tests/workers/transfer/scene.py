"""This process's side of a transfer: a pool, the thread, and a child process to write to and read from."""

import asyncio
import multiprocessing
import queue
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from proto.cards import AgentCard, ProcessIdentity, RankAgent
from proto.errors import KvmeshError
from proto.layout import LayerRange
from proto.names import new_id
from tests.workers.forked import ForkedProcess
from tests.workers.transfer.peer_process import Heard, PoolOrder, run_peer
from tests.workers.transfer.pools import NUM_LAYERS, MemoryPool
from workers.roles.proof import own_identity
from workers.transfer.copy_plan import BlockPairs, plan_copies
from workers.transfer.opened_rank import open_rank
from workers.transfer.outcome import Outcome
from workers.transfer.own_memory import OwnMemory, OwnRank
from workers.transfer.peers import Peer
from workers.transfer.staging import StagingSize
from workers.transfer.transfer_thread import TransferThread
from workers.transfer.transfers import Operation, Transfer

ALL_LAYERS = LayerRange(0, NUM_LAYERS)
LIMIT_S = 20.0


def _refuse_nothing() -> None:
    raise AssertionError("nothing refuses this")


class PeerProcess:
    """The child, as one of our peers."""

    def __init__(self, name: str, num_blocks: int, num_heads: int, environ: dict[str, str]) -> None:
        self.name = name
        self._link, theirs = multiprocessing.Pipe()
        agent = f"{name}.{new_id()}"
        self.process = ForkedProcess(name, run_peer, theirs, agent, num_blocks, num_heads, environ)
        theirs.close()
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        rank = msgspec.msgpack.decode(self._next(), type=RankAgent)
        identity = ProcessIdentity("boot", "pid:[1]", self.process.pid, 1)
        self.peer = Peer(AgentCard(name, new_id(), identity, [rank]))

    def fill(self, block: int, value: int) -> None:
        self._ask(PoolOrder("fill", block, value))

    def clear(self, block: int) -> None:
        self._ask(PoolOrder("clear", block))

    def cut_connections(self) -> None:
        """It lives on, and so do we; but what connects us over TCP is dead."""
        self._ask(PoolOrder("cut", 0))

    def deafen(self) -> None:
        """What connects us over TCP now carries nothing any more to it, and nobody says so."""
        self._ask(PoolOrder("deafen", 0))

    def hear_again(self) -> None:
        self._ask(PoolOrder("hear", 0))

    def layers(self, block: int) -> list[int]:
        return self._ask(PoolOrder("show", block))

    def hear(self) -> Heard:
        """The next landing."""
        if self._heard.empty():
            heard = self._recv()
            assert isinstance(heard, Heard)
            return heard
        return self._heard.get()

    def close(self) -> None:
        self.process.close()
        self._link.close()

    def _ask(self, order: PoolOrder) -> list[int]:
        self._link.send(order)
        layers: list[int] = self._next()
        return layers

    def _next(self) -> Any:
        while isinstance(said := self._recv(), Heard):
            self._heard.put(said)
        return said

    def _recv(self) -> Any:
        assert self._link.poll(LIMIT_S), f"{self.name} says nothing"
        return self._link.recv()


class Scene:
    """Our own pool and thread, which are our whole `memory`. `moved` has what was reported as done, and
    `on_moved` is called then, in the thread."""

    memory: OwnMemory

    def __init__(
        self, pool: MemoryPool, stack: AsyncExitStack, stall_s: float, staging: StagingSize | None
    ) -> None:
        self.pool = pool
        self.on_moved: Callable[[], None] = lambda: None
        self.moved: list[tuple[Operation, int]] = []
        opened = stack.enter_context(open_rank(f"test.{new_id()}", pool.layout, {}, staging))
        self.hidden = opened.hidden
        self.transfers = TransferThread(opened.transport, lambda landing: None, self._note_moved, stall_s)
        self._stack = stack

    def _note_moved(self, transfer: Transfer, _: float) -> None:
        self.moved.append((transfer.operation, transfer.num_bytes))
        self.on_moved()

    def start_stranger(
        self, name: str = "stranger", num_blocks: int = 8, num_heads: int = 2, ucx_tls: str = "", **ucx: str
    ) -> PeerProcess:
        """A child that has not been met."""
        environ = {**ucx, "UCX_TLS": ucx_tls} if ucx_tls else ucx
        child = PeerProcess(name, num_blocks, num_heads, environ)
        self._stack.callback(child.close)
        return child

    async def start_peer(
        self, name: str = "peer", num_blocks: int = 8, num_heads: int = 2, ucx_tls: str = "", **ucx: str
    ) -> PeerProcess:
        """A child that has been met. `ucx_tls`: its transports, where not all; `ucx`: more settings."""
        child = self.start_stranger(name, num_blocks, num_heads, ucx_tls, **ucx)
        met = Outcome(asyncio.get_running_loop())
        rank = child.peer.rank
        self.transfers.add_peer(rank.agent, rank.metadata, met.settle)
        assert await met.wait() is None
        return child

    async def move(
        self,
        operation: Operation,
        child: PeerProcess,
        pairs: list[tuple[int, int]],
        layers: LayerRange = ALL_LAYERS,
    ) -> KvmeshError | None:
        """Moves blocks (source, target); what went wrong, if anything."""
        return await self.submit(operation, child, pairs, layers).wait()

    def submit(
        self,
        operation: Operation,
        child: PeerProcess,
        pairs: list[tuple[int, int]],
        layers: LayerRange = ALL_LAYERS,
        may_start: Callable[[], bool] = lambda: True,
        on_refused: Callable[[], None] = _refuse_nothing,
    ) -> Outcome:
        ours, theirs = self.pool.layout, child.peer.rank.pool
        source, target = (ours, theirs) if operation == "WRITE" else (theirs, ours)
        copies = plan_copies(source, target, BlockPairs(*zip(*pairs, strict=True)), layers)
        over = Outcome(asyncio.get_running_loop())

        agent = child.peer.rank.agent
        self.transfers.submit(Transfer(operation, agent, copies, "cpu", may_start, on_refused, over.settle))
        return over


@asynccontextmanager
async def open_scene(
    num_blocks: int = 8, num_heads: int = 2, stall_s: float = LIMIT_S, staging: StagingSize | None = None
) -> AsyncIterator[Scene]:
    """With `staging` our pool is hidden behind it."""
    async with AsyncExitStack() as stack:
        scene = Scene(MemoryPool(num_blocks, num_heads), stack, stall_s, staging)
        async with scene.transfers.running() as rank:
            scene.memory = OwnMemory([OwnRank(rank, own_identity(), scene.transfers, scene.hidden)])
            yield scene
