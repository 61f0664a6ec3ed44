"""Posts of small pieces: two threads share them, and nobody sees it but by the time they take."""

import asyncio
import threading

import pytest

from proto.errors import PeerGone
from tests.workers.transfer.conftest import Exchange
from tests.workers.transfer.scene import PeerProcess, Scene, open_scene
from workers.transfer import nixl_line


@pytest.fixture(autouse=True)
def _share_the_smallest_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_line, "MIN_SHARED_BYTES", 1)
    monkeypatch.setattr(nixl_line, "MIN_PORTION_BYTES", 1)


def second_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "transfer-2"}


def test_what_two_threads_write_is_whole_and_read_back_and_ends_once(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        for block in range(3):
            scene.pool.fill(block, 10 * block + 1)
        assert await scene.move("WRITE", child, [(0, 7), (1, 5), (2, 0)]) is None
        assert [child.layers(block) for block in (7, 5, 0)] == [
            [1, 2, 3, 4],
            [11, 12, 13, 14],
            [21, 22, 23, 24],
        ]
        assert await scene.move("READ", child, [(5, 4), (0, 6)]) is None
        assert [scene.pool.layers(block) for block in (4, 6)] == [[11, 12, 13, 14], [21, 22, 23, 24]]
        block_bytes = scene.pool.layout.block_bytes
        assert scene.moved == [("WRITE", 3 * block_bytes), ("READ", 2 * block_bytes)]
        assert second_threads()

    exchange.run(body)


def test_one_piece_and_what_is_read_have_no_second_half() -> None:
    async def run() -> None:
        before = second_threads()
        async with open_scene() as scene:
            child = await scene.start_peer()
            scene.pool.fill(2, 50)
            assert await scene.move("WRITE", child, [(2, 3)]) is None
            assert child.layers(3) == [50, 51, 52, 53]
            assert await scene.move("READ", child, [(3, 5), (0, 7)]) is None
            assert scene.pool.layers(5) == [50, 51, 52, 53]
            assert second_threads() == before
            assert await scene.move("WRITE", child, [(2, 4), (5, 6)]) is None
            assert second_threads() > before

    asyncio.run(run())


def test_a_peer_that_dies_fails_both_halves_as_one_and_no_other_peer(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess) -> None:
        mortal = await scene.start_peer("mortal")
        assert await scene.move("WRITE", mortal, [(0, 1), (2, 3)]) is None
        mortal.process.kill()
        assert isinstance(await scene.move("WRITE", mortal, [(0, 1), (2, 3)]), PeerGone)
        scene.transfers.remove_peer(mortal.peer.rank.agent)
        scene.pool.fill(6, 70)
        assert await scene.move("WRITE", child, [(6, 1), (7, 3)]) is None
        assert child.layers(1) == [70, 71, 72, 73]

    exchange.run(body)


def test_a_worker_that_can_have_no_second_agent_moves_all_with_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with open_scene() as scene:
            child = await scene.start_peer()
            monkeypatch.setenv("UCX_TLS", "gdr_copy")  # a transport that is not on this machine
            before = second_threads()
            for block in (1, 2):
                scene.pool.fill(block, 30 * block)
                assert await scene.move("WRITE", child, [(block, 4), (0, 6)]) is None
                assert child.layers(4) == [30 * block + layer for layer in range(4)]
            assert second_threads() == before

    asyncio.run(run())
    assert len([1 for record in caplog.records if "use one thread" in record.message]) == 1
