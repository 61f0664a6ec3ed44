"""Bytes between two processes: what arrives, when that is said, and what a dead or stopped peer does."""

import asyncio
import time

import pytest

from proto.codec import encode
from proto.errors import PeerGone
from proto.jobs import Landing
from proto.layout import LayerRange
from tests.workers.transfer.conftest import Exchange
from tests.workers.transfer.peer_process import Heard
from tests.workers.transfer.scene import ALL_LAYERS, PeerProcess, Scene, open_scene
from workers.transfer.copy_plan import BlockPairs, plan_copies
from workers.transfer.outcome import Outcome
from workers.transfer.transfers import Transfer


def test_written_blocks_arrive_whole_and_nothing_else_changes(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        for block in (1, 2, 5):
            scene.pool.fill(block, 10 * block)
        assert await scene.move("WRITE", child, [(1, 7), (2, 3), (5, 4)]) is None
        assert child.layers(7) == [10, 11, 12, 13]
        assert child.layers(3) == [20, 21, 22, 23]
        assert child.layers(4) == [50, 51, 52, 53]
        assert all(child.layers(block) == [0, 0, 0, 0] for block in (0, 1, 2, 5, 6))
        assert scene.moved == [("WRITE", 3 * scene.pool.layout.block_bytes)]

    exchange.run(body)


def test_a_run_of_layers_arrives_alone(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        scene.pool.fill(2, 60)
        assert await scene.move("WRITE", child, [(2, 2)], LayerRange(1, 2)) is None
        assert child.layers(2) == [0, 61, 62, 0]

    exchange.run(body)


def test_read_blocks_arrive_whole(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        child.fill(3, 70)
        assert await scene.move("READ", child, [(3, 6)]) is None
        assert scene.pool.layers(6) == [70, 71, 72, 73]
        assert scene.moved == [("READ", scene.pool.layout.block_bytes)]

    exchange.run(body)


def test_a_notice_is_heard_only_when_the_bytes_lie_there(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        for round_number in range(20):
            for block in range(8):
                scene.pool.fill(block, 4 * round_number + block)
            assert await scene.move("WRITE", child, [(block, block) for block in range(8)]) is None
            told = Outcome(asyncio.get_running_loop())
            notice = encode(Landing(f"grant {round_number}", 5))
            scene.transfers.notify(child.peer.rank.agent, notice, told.settle)
            assert await told.wait() is None
            found = [[4 * round_number + block + layer for layer in range(4)] for block in range(8)]
            assert child.hear() == Heard(f"grant {round_number}", 5, found)

    exchange.run(body)


def test_a_transfer_that_may_not_start_writes_nothing(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        scene.pool.fill(1, 9)
        refused = Outcome(asyncio.get_running_loop())

        def on_done(_: object) -> None:
            raise AssertionError("it must not start")

        pools = scene.pool.layout, child.peer.rank.pool
        copies = plan_copies(*pools, BlockPairs([1], [1]), ALL_LAYERS)
        agent = child.peer.rank.agent
        scene.transfers.submit(
            Transfer("WRITE", agent, copies, "cpu", lambda: False, lambda: refused.settle(None), on_done)
        )
        await refused.wait()
        assert await scene.move("WRITE", child, [(0, 0)]) is None
        assert child.layers(1) == [0, 0, 0, 0]

    exchange.run(body)


def test_of_many_submitted_at_once_each_arrives_but_those_that_may_not_start(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        refused: list[int] = []
        done: list[Outcome] = []
        for block in range(8):
            scene.pool.fill(block, 10 * block)
            over = Outcome(asyncio.get_running_loop())
            pools = scene.pool.layout, child.peer.rank.pool
            copies = plan_copies(*pools, BlockPairs([block], [block]), ALL_LAYERS)

            def may_start(block: int = block) -> bool:
                return block % 3 != 0

            def on_refused(block: int = block, over: Outcome = over) -> None:
                refused.append(block)
                over.settle(None)

            scene.transfers.submit(
                Transfer(
                    "WRITE",
                    child.peer.rank.agent,
                    copies,
                    "cpu",
                    may_start,
                    on_refused,
                    over.settle,
                )
            )
            done.append(over)
        assert [await over.wait() for over in done] == [None] * 8
        assert refused == [0, 3, 6]
        assert [child.layers(block)[0] for block in range(8)] == [0, 10, 20, 0, 40, 50, 0, 70]

    exchange.run(body)


def test_a_killed_peer_is_gone_in_bounded_time_and_its_successor_works(exchange: Exchange) -> None:
    async def body(scene: Scene, _: PeerProcess) -> None:
        child = await scene.start_peer("mortal")
        scene.pool.fill(1, 30)
        assert await scene.move("WRITE", child, [(1, 1)]) is None
        child.process.kill()
        started_s = time.monotonic()
        assert isinstance(await scene.move("WRITE", child, [(1, 2)]), PeerGone)
        assert isinstance(await scene.move("READ", child, [(1, 2)]), PeerGone)
        told = Outcome(asyncio.get_running_loop())
        scene.transfers.notify(child.peer.rank.agent, b"", told.settle)
        assert isinstance(await told.wait(), PeerGone)
        assert time.monotonic() - started_s < 5
        scene.transfers.remove_peer(child.peer.rank.agent)
        successor = await scene.start_peer(child.name)
        assert await scene.move("WRITE", successor, [(1, 1)]) is None
        assert successor.layers(1) == [30, 31, 32, 33]

    exchange.run(body)


@pytest.mark.parametrize(
    "targets", [range(64), range(63, -1, -1)], ids=["one piece", "pieces that two threads share"]
)
def test_a_write_to_a_stopped_process_is_not_over_before_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, targets: range
) -> None:
    """Also not when the peer is forgotten meanwhile: the bytes land all the same."""
    monkeypatch.setenv("UCX_TLS", "tcp")

    async def run() -> None:
        async with open_scene(num_blocks=64, num_heads=64) as scene:
            await body(scene, await scene.start_peer("stopped", 64, 64, "tcp"))

    async def body(scene: Scene, child: PeerProcess) -> None:
        assert await scene.move("WRITE", child, [(0, 0)]) is None
        for block in range(64):
            scene.pool.fill(block, 100)
        child.process.suspend()
        over = scene.submit("WRITE", child, list(enumerate(targets)))
        scene.transfers.remove_peer(child.peer.rank.agent)
        waiting = asyncio.ensure_future(over.wait())
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        child.process.resume()
        assert await waiting is None
        assert child.layers(0) == child.layers(63) == [100, 101, 102, 103]

    asyncio.run(run())


def test_what_is_asked_of_an_ended_thread_is_refused() -> None:
    async def run() -> None:
        async with open_scene() as scene:
            assert scene.transfers.fault == scene.transfers.ailment == ""
        refused: list[str] = []
        nothing = plan_copies(scene.pool.layout, scene.pool.layout, BlockPairs([], []), ALL_LAYERS)

        def on_done(_: object) -> None:
            raise AssertionError("it must not start")

        scene.transfers.submit(
            Transfer("WRITE", "x", nothing, "cpu", lambda: True, lambda: refused.append("it"), on_done)
        )
        assert refused == ["it"]
        told = Outcome(asyncio.get_running_loop())
        scene.transfers.notify("x", b"", told.settle)
        assert isinstance(await told.wait(), PeerGone)
        assert scene.transfers.fault == scene.transfers.ailment == "they have ended"

    asyncio.run(run())
