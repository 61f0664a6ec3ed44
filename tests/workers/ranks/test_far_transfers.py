"""A follower in a process of its own, which is stopped or killed between its orders and their ends."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from proto.errors import InvalidSetting, KvmeshError, PeerGone
from proto.layout import HeadRange, LayerRange
from tests.services.waiting import wait_for
from tests.workers.forked import ForkedProcess
from tests.workers.transfer.ranked import (
    GRANT,
    NUM_TOKENS,
    SEQUENCE_BLOCKS,
    RankedWorker,
    RankPool,
    begin_push,
    random_kv,
    share_out,
)
from tests.workers.transfer.scene import PeerProcess
from workers.ranks.far_transfers import ENDED
from workers.ranks.link import Link
from workers.ranks.ordered_transfers import OrderedTransfers
from workers.transfer.agents import Agents
from workers.transfer.copy_plan import BlockPairs, Copies, plan_copies
from workers.transfer.outcome import Outcome
from workers.transfer.own_memory import OwnRank
from workers.transfer.peers import Peer
from workers.transfer.push import Push
from workers.transfer.transfers import Transfer

SEED = 1


def run_follower(end: socket.socket, layers: LayerRange, heads: HeadRange) -> None:
    """A rank whose pool is laid out, and that does what its leader orders until that hangs up."""
    pool, is_over = RankPool(layers, heads), threading.Event()
    pool.kv[:] = pool.part_of(random_kv(SEED))
    link = Link(end, "leader", is_over.set)
    with OrderedTransfers(link, pool.layout), link:
        is_over.wait()


class WorkerApart(RankedWorker):
    """Its second rank is a process of its own."""

    follower: ForkedProcess

    @asynccontextmanager
    async def follow(self, rank: int) -> AsyncIterator[OwnRank]:
        ours, theirs = socket.socketpair()
        layers, heads = share_out(2, 1)[rank]
        self.follower = ForkedProcess(f"rank {rank}", run_follower, theirs, layers, heads)
        theirs.close()
        try:
            async with self.ordering(rank, ours) as own:
                yield own
        finally:
            self.follower.close()


def run_workers(body: Callable[[WorkerApart, RankedWorker], Awaitable[None]]) -> None:
    """`body` gets a worker of two ranks, which hold the KV of `SEED`, and one with an empty pool."""

    async def run() -> None:
        agents = Agents()
        source = WorkerApart("source", share_out(2, 1), agents)
        target = RankedWorker("target", share_out(1, 1), agents)
        source.lay(random_kv(SEED))
        async with target.living(), source.living():
            await body(source, target)

    asyncio.run(run())


def write_all(source: RankedWorker, target_peer: Peer) -> tuple[Push, list[KvmeshError]]:
    push, faults = begin_push(source, target_peer)
    push.write_whole(0, NUM_TOKENS, SEQUENCE_BLOCKS)
    return push, faults


def test_a_push_is_settled_once_a_follower_that_was_stopped_with_its_orders_has_carried_them_out() -> None:
    async def body(source: WorkerApart, target: RankedWorker) -> None:
        peer = await source.meet(target)
        source.follower.suspend()
        push, faults = write_all(source, peer)
        await wait_for(lambda: source.moved[0] > 0)
        push.stop()
        settling = asyncio.ensure_future(push.wait_settled())
        await asyncio.wait([settling], timeout=0.1)
        assert not settling.done(), "it may write yet"
        source.follower.resume()
        await settling
        assert not faults
        wanted = target.pools[0].kv * 0
        wanted[GRANT.blocks] = random_kv(SEED)[SEQUENCE_BLOCKS[1:]]
        assert target.holds(wanted), "what was ordered before the stop has landed before it is told of"

    run_workers(body)


def test_what_may_not_start_is_not_ordered() -> None:
    async def body(source: WorkerApart, target: RankedWorker) -> None:
        peer = await source.meet(target)
        refused = threading.Event()
        pool = source.memory.pools[1]
        copies = plan_copies(pool, peer.pools[0], BlockPairs([0], [0]), pool.layers)
        done: list[KvmeshError | None] = []
        source.memory.ranks[1].transfers.submit(
            Transfer(
                "WRITE",
                peer.rank.agent,
                copies,
                "cpu",
                lambda: False,
                refused.set,
                done.append,
            )
        )
        await wait_for(refused.is_set)
        assert not done
        assert not target.pools[0].kv.any()

    run_workers(body)


def test_a_follower_that_is_killed_leaves_what_it_was_ordered_unknown_and_refuses_the_rest() -> None:
    async def body(source: WorkerApart, target: RankedWorker) -> None:
        peer = await source.meet(target)
        source.follower.suspend()
        push, _ = write_all(source, peer)
        await wait_for(lambda: source.moved[0] > 0)
        source.follower.kill()
        await wait_for(lambda: source.memory.fault == f"rank 1: {ENDED}")
        push.stop()
        settling = asyncio.ensure_future(push.wait_settled())
        await asyncio.wait([settling], timeout=0.1)
        assert not settling.done(), "nobody knows whether it had written"
        settling.cancel()
        source.peers.part(peer)
        with pytest.raises(PeerGone):
            await source.meet(target)
        after, _ = write_all(source, peer)
        await after.wait_settled()

    run_workers(body)


def test_a_follower_whose_transfers_cannot_open_says_why() -> None:
    async def body() -> None:
        source = WorkerApart("source", share_out(2, 1), Agents())
        source.parameters = {"no such parameter": "1"}
        with pytest.raises(InvalidSetting, match="no such parameter"):
            async with source.living():
                raise AssertionError("it is open")

    asyncio.run(body())


def test_a_transfer_of_a_follower_that_does_not_end_is_told_of_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    stalled, done = threading.Event(), list[KvmeshError | None]()

    async def body() -> None:
        source = RankedWorker("source", share_out(2, 1), Agents())
        source.stall_s = 0.2
        async with source.living():
            stranger = PeerProcess("stopped", 8, 2, {"UCX_TLS": "tcp"})
            try:
                await move(source, stranger)
            finally:
                stranger.close()

    async def move(source: RankedWorker, stranger: PeerProcess) -> None:
        rank, theirs = source.memory.ranks[1], stranger.peer.rank
        met = Outcome(asyncio.get_running_loop())
        rank.transfers.add_peer(theirs.agent, theirs.metadata, met.settle)
        assert await met.wait() is None
        stranger.process.suspend()
        copy = [rank.agent.pool.address, theirs.pool.address, theirs.pool.block_bytes]
        more_than_a_socket_takes = Copies(np.array([copy] * 2000, dtype=np.uint64))
        rank.transfers.submit(
            Transfer(
                "WRITE",
                theirs.agent,
                more_than_a_socket_takes,
                "cpu",
                lambda: True,
                lambda: None,
                done.append,
                lambda _: stalled.set(),
            )
        )
        await wait_for(stalled.is_set)
        await wait_for(lambda: "rank 1: 1 have not ended" in source.memory.ailment)
        assert source.memory.fault == ""
        stranger.process.resume()
        await wait_for(lambda: done == [None] and source.memory.ailment == "")

    asyncio.run(body())
