"""A transfer that does not end, and a thread that hangs: told of in time, and forgotten once it ends."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proto.errors import DeadlineExceeded, InternalFault
from tests.services.waiting import wait_for
from tests.workers.engine.engine_desk import small_settings
from tests.workers.engine.witness_runner import WitnessRunner
from tests.workers.roles.lending import Listener
from tests.workers.transfer.scene import LIMIT_S, PeerProcess, Scene, open_scene
from workers.engine.engine import Engine
from workers.guards import guard_threads
from workers.transfer.pull import Pull

NUM_BLOCKS, NUM_HEADS = 64, 64
STALL_S = 0.2
KEEPALIVE, REST_S = "11ms", 0.6
BLOCKS = list(range(NUM_BLOCKS))


@asynccontextmanager
async def open_stopped(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Scene, PeerProcess]]:
    """A peer over TCP that was met and is stopped: what is asked of it waits for it."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    async with open_scene(NUM_BLOCKS, NUM_HEADS, STALL_S) as scene:
        child = await scene.start_peer("stopped", NUM_BLOCKS, NUM_HEADS, "tcp")
        assert await scene.move("WRITE", child, [(0, 0)]) is None
        child.process.suspend()
        yield scene, child


def test_a_transfer_that_does_not_end_is_an_ailment_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with open_stopped(monkeypatch) as (scene, child):
            over = scene.submit("WRITE", child, [(block, block) for block in BLOCKS])
            assert scene.transfers.ailment == ""
            await wait_for(lambda: "1 have not ended" in scene.transfers.ailment)
            assert scene.transfers.fault == ""
            child.process.resume()
            assert await over.wait() is None
            await wait_for(lambda: scene.transfers.ailment == "")

    asyncio.run(run())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_read_that_nobody_waits_for_any_more_gives_its_blocks_back_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    ended: list[bool] = []

    async def run() -> None:
        async with open_stopped(monkeypatch) as (scene, child):
            pull = Pull(scene.pool.layout, scene.transfers, lambda: ended.append(pull.is_on_way))
            reading = asyncio.ensure_future(pull.run(child.peer, BLOCKS, BLOCKS))
            await wait_for(lambda: pull.is_on_way)
            if is_cancelled:
                reading.cancel()
            with pytest.raises(asyncio.CancelledError if is_cancelled else DeadlineExceeded):
                await reading
            assert pull.is_on_way
            assert ended == []
            child.process.resume()
            await wait_for(lambda: ended == [False])

    asyncio.run(run())


def test_a_read_that_ends_in_time_is_told_of_once() -> None:
    ended: list[bool] = []

    async def run() -> None:
        async with open_scene() as scene:
            child = await scene.start_peer()
            child.fill(3, 70)
            pull = Pull(scene.pool.layout, scene.transfers, lambda: ended.append(True))
            await pull.run(child.peer, [3], [6])
            assert not pull.is_on_way
            assert scene.pool.layers(6) == [70, 71, 72, 73]

    asyncio.run(run())
    assert ended == []


@pytest.mark.parametrize("transports", ["", "tcp"])
def test_the_first_transfer_after_a_long_rest_works(monkeypatch: pytest.MonkeyPatch, transports: str) -> None:
    """All that happens in a rest is that UCX, each 20 s, sees whether the peer lives: here at every look."""
    monkeypatch.setenv("UCX_KEEPALIVE_INTERVAL", KEEPALIVE)
    if transports:
        monkeypatch.setenv("UCX_TLS", transports)

    async def run() -> None:
        async with open_scene() as scene:
            child = await scene.start_peer("resting", ucx_tls=transports, UCX_KEEPALIVE_INTERVAL=KEEPALIVE)
            assert await scene.move("WRITE", child, [(0, 0)]) is None
            await asyncio.sleep(REST_S)
            scene.pool.fill(1, 30)
            assert await scene.move("WRITE", child, [(1, 1)]) is None
            assert child.layers(1) == [30, 31, 32, 33]
            assert await scene.move("READ", child, [(1, 2)]) is None
            assert scene.pool.layers(2) == [30, 31, 32, 33]

    asyncio.run(run())


def test_a_thread_that_hangs_is_a_fault_that_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr("workers.guards.DOUBT_S", 0.5)
    engine = Engine(WitnessRunner(12, 4), small_settings(), Listener())

    def hang() -> None:
        assert may_go_on.wait(LIMIT_S)

    async def run() -> None:
        async with open_scene(stall_s=STALL_S) as scene:
            child = await scene.start_peer()
            scene.on_moved = hang
            over = scene.submit("WRITE", child, [(0, 0)])
            await wait_for(lambda: "has not returned" in scene.transfers.fault)
            with pytest.raises(InternalFault):
                await guard_threads(engine, scene.transfers)
            may_go_on.set()
            assert await over.wait() is None
            await wait_for(lambda: scene.transfers.fault == "")

    asyncio.run(run())
