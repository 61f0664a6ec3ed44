"""The writes of one grant: whole, in groups of layers, from the blocks that hold the sequence in the end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from proto.control import Granted
from proto.errors import DeadlineExceeded, InternalFault, KvmeshError, NothingPosted, PeerGone
from proto.layout import LayerRange
from tests.workers.harness import until
from tests.workers.transfer.conftest import Exchange
from tests.workers.transfer.pools import BLOCK_SIZE
from tests.workers.transfer.scene import ALL_LAYERS, PeerProcess, Scene, open_scene
from workers.transfer import nixl_agent, nixl_line
from workers.transfer.push import Push

Faults = list[KvmeshError]
SEQUENCE_BLOCKS = [4, 1, 6, 2]
"""The sequence of every test here: 56 tokens, the first 16 of which the owner has."""
GRANT = Granted("grant", "job", BLOCK_SIZE, 3 * BLOCK_SIZE + 8, [7, 0, 5])


def run_push(exchange: Exchange, body: Callable[[Scene, PeerProcess, Push, Faults], Awaitable[None]]) -> None:
    async def run(scene: Scene, child: PeerProcess) -> None:
        await body(scene, child, *begin_push(scene, child))

    exchange.run(run)


def begin_push(scene: Scene, child: PeerProcess) -> tuple[Push, Faults]:
    for number, block in enumerate(SEQUENCE_BLOCKS):
        scene.pool.fill(block, 10 * number)
    faults: Faults = []
    return Push(GRANT, child.peer, scene.memory, faults.append), faults


async def wait_told(faults: Faults, kind: type[KvmeshError]) -> None:
    async def is_told() -> bool:
        return kind in {type(fault) for fault in faults}

    await until(f"{kind.__name__} is told", is_told)


def assert_landed(child: PeerProcess) -> None:
    assert [child.layers(block) for block in GRANT.blocks] == [
        [10, 11, 12, 13],
        [20, 21, 22, 23],
        [30, 31, 32, 33],
    ]
    assert all(child.layers(block) == [0, 0, 0, 0] for block in (1, 2, 3, 4, 6))


def test_pieces_make_a_whole_and_what_the_owner_has_is_not_sent(
    exchange: Exchange,
) -> None:
    async def body(scene: Scene, child: PeerProcess, push: Push, faults: Faults) -> None:
        for layers in (LayerRange(0, 2), LayerRange(2, 2)):
            push.write(0, 0, 32, SEQUENCE_BLOCKS[:2], layers)
        for layers in (LayerRange(0, 3), LayerRange(3, 1)):
            push.write(0, 32, 56, SEQUENCE_BLOCKS[2:], layers)
        await push.complete(SEQUENCE_BLOCKS)
        await push.land()
        heard = child.hear()
        assert (heard.grant, heard.num_bytes) == ("grant", 3 * scene.pool.layout.block_bytes)
        assert_landed(child)
        assert not faults

    run_push(exchange, body)


def test_what_was_written_from_blocks_that_were_taken_away_is_written_again(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess, push: Push, faults: Faults) -> None:
        scene.pool.fill(0, 99)
        push.write(0, 0, 32, [3, 0], ALL_LAYERS)
        push.write(0, 0, 56, SEQUENCE_BLOCKS, ALL_LAYERS)
        await push.complete(SEQUENCE_BLOCKS)
        assert_landed(child)
        block_bytes = scene.pool.layout.block_bytes
        assert [num_bytes for _, num_bytes in scene.moved] == [block_bytes, 3 * block_bytes, block_bytes]

    run_push(exchange, body)


def test_what_was_written_twice_is_written_once_more_when_nothing_is_on_its_way(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess, push: Push, faults: Faults) -> None:
        push.write(0, 0, 56, SEQUENCE_BLOCKS, ALL_LAYERS)
        push.write(0, 0, 56, SEQUENCE_BLOCKS, ALL_LAYERS)
        await push.complete(SEQUENCE_BLOCKS)
        assert len(scene.moved) == 3
        assert_landed(child)

    run_push(exchange, body)


def test_a_piece_that_never_came_is_written_in_the_end(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess, push: Push, faults: Faults) -> None:
        push.write(0, 0, 32, SEQUENCE_BLOCKS[:2], ALL_LAYERS)
        await push.complete(SEQUENCE_BLOCKS)
        assert_landed(child)

    run_push(exchange, body)


def test_a_sequence_that_is_gone_cannot_complete_a_push(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess, push: Push, faults: Faults) -> None:
        push.write(0, 0, 56, SEQUENCE_BLOCKS, ALL_LAYERS)
        with pytest.raises(InternalFault):
            await push.complete([])

    run_push(exchange, body)


def test_after_stop_nothing_is_written(exchange: Exchange) -> None:
    async def body(scene: Scene, child: PeerProcess, push: Push, faults: Faults) -> None:
        push.stop()
        push.write(0, 0, 56, SEQUENCE_BLOCKS, ALL_LAYERS)
        await push.wait_settled()
        assert await scene.move("WRITE", child, [(3, 1)]) is None
        assert all(child.layers(block) == [0, 0, 0, 0] for block in range(8))
        assert not push.may_land_late
        with pytest.raises(InternalFault):
            await push.complete(SEQUENCE_BLOCKS)

    run_push(exchange, body)


def test_a_write_that_fails_on_its_way_is_told_at_once_and_leaves_the_grant_in_doubt() -> None:
    async def run() -> None:
        async with open_scene(stall_s=0.2) as scene:
            child = await scene.start_peer("mortal", ucx_tls="tcp")
            assert await scene.move("WRITE", child, [(3, 1)]) is None
            child.process.suspend()
            push, faults = begin_push(scene, child)
            push.write(0, 0, 32, SEQUENCE_BLOCKS[:2], ALL_LAYERS)
            with pytest.raises(DeadlineExceeded):
                await push.complete(SEQUENCE_BLOCKS)  # so it is on its way
            child.process.kill()
            await wait_told(faults, PeerGone)
            await push.wait_settled()
            assert push.may_land_late

    asyncio.run(run())


@pytest.mark.parametrize("num_shared_bytes", [1, 2**30], ids=["two threads", "one thread"])
def test_a_connection_that_died_before_a_write_leaves_no_grant_in_doubt(
    num_shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_line, "MIN_SHARED_BYTES", num_shared_bytes)
    monkeypatch.setattr(nixl_agent, "QUIET_S", 0.0)

    async def run() -> None:
        async with open_scene() as scene:
            child = await scene.start_peer("cut", ucx_tls="tcp")
            assert await scene.move("WRITE", child, [(3, 1), (5, 6)]) is None
            child.cut_connections()
            push, faults = begin_push(scene, child)
            push.write(0, 0, 56, SEQUENCE_BLOCKS, ALL_LAYERS)
            with pytest.raises(NothingPosted):
                await push.complete(SEQUENCE_BLOCKS)
            await wait_told(faults, NothingPosted)
            await push.wait_settled()
            assert not push.may_land_late

    asyncio.run(run())
