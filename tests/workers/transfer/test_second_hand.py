"""The second hand alone: what is offered to it arrives, and what it cannot reach it leaves to the first."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from proto.names import new_id
from tests.workers.transfer.conftest import Exchange
from tests.workers.transfer.scene import ALL_LAYERS, LIMIT_S, PeerProcess, Scene
from workers.transfer.copy_plan import BlockPairs, plan_copies
from workers.transfer.nixl_agent import NixlAgent
from workers.transfer.second_hand import SecondHand
from workers.transfer.shared_post import SharedPost


@contextmanager
def open_second(scene: Scene, woken: threading.Event) -> Iterator[SecondHand]:
    second = SecondHand(NixlAgent(f"second.{new_id()}", scene.pool.layout))
    second.set_wake(woken.set)
    assert second.try_open()
    try:
        yield second
    finally:
        second.close()


def write_of(scene: Scene, child: PeerProcess, agent: str) -> SharedPost:
    """Blocks 1 and 2 to 3 and 6, in two portions."""
    copies = plan_copies(scene.pool.layout, child.peer.rank.pool, BlockPairs([1, 2], [3, 6]), ALL_LAYERS)
    return SharedPost("WRITE", agent, copies, "cpu", 1)


def test_what_the_first_hand_leaves_it_writes_whole_and_wakes_when_it_is_over(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        for block in (1, 2):
            scene.pool.fill(block, 20 * block)
        woken = threading.Event()
        rank = child.peer.rank
        with open_second(scene, woken) as second:
            second.learn_peer(rank.agent, rank.metadata)
            post = write_of(scene, child, rank.agent)
            second.offer(post)
            assert await asyncio.to_thread(woken.wait, LIMIT_S)
            assert post.is_over and post.fault is None
            second.forget_peer(rank.agent)
        assert child.layers(3) == [20, 21, 22, 23]
        assert child.layers(6) == [40, 41, 42, 43]

    exchange.run(body)


def test_of_a_peer_that_it_does_not_know_it_takes_nothing(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        woken = threading.Event()
        rank = child.peer.rank
        with open_second(scene, woken) as second:
            second.learn_peer(rank.agent, rank.metadata)
            unreachable, reachable = write_of(scene, child, "nobody"), write_of(scene, child, rank.agent)
            for post in (unreachable, reachable):
                second.offer(post)
            assert await asyncio.to_thread(woken.wait, LIMIT_S)
            assert reachable.is_over
            assert not unreachable.is_over
            assert sum(len(copies) for copies in iter(unreachable.take, None)) == 2

    exchange.run(body)
