"""A transfer that does not end, and a thread that hangs: told of in time, and forgotten once it ends."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from proto.cards import RankAgent
from proto.codec import encode
from proto.errors import DeadlineExceeded, InternalFault, KvmeshError, PeerGone
from proto.jobs import Landing
from tests.services.waiting import wait_for
from tests.workers.engine.engine_desk import small_settings, spec_of
from tests.workers.engine.witness_runner import WitnessRunner
from tests.workers.roles.lending import Listener
from tests.workers.transfer.scene import LIMIT_S, PeerProcess, Scene, open_scene
from workers.engine.engine import Engine
from workers.engine.engine_thread import EngineThread
from workers.guards import LOOK_S, guard_threads
from workers.transfer.nixl_transport import MAX_LINES
from workers.transfer.outcome import Outcome
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


def test_a_peer_whose_connection_is_stuck_is_reached_over_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both processes are well. What is stuck stays an ailment, and may land whenever it comes to it."""
    monkeypatch.setenv("UCX_TLS", "tcp")

    async def run() -> None:
        async with open_scene(stall_s=1.0) as scene:
            child = await scene.start_peer("deaf", ucx_tls="tcp")
            assert await scene.move("WRITE", child, [(0, 0)]) is None
            child.deafen()
            scene.pool.fill(1, 30)
            posted = scene.submit("WRITE", child, [(1, 1)]), scene.submit("READ", child, [(1, 1)])
            stuck = asyncio.gather(*[over.wait() for over in posted])
            await wait_for(lambda: "2 have not ended" in scene.transfers.ailment)
            await assert_works(scene, child, 2)
            assert not stuck.done()
            assert child.layers(1) == [0, 0, 0, 0]
            assert "2 have not ended" in scene.transfers.ailment
            child.hear_again()
            assert await stuck == [None, None]
            assert child.layers(1) == [30, 31, 32, 33]
            await wait_for(lambda: scene.transfers.ailment == "")
            await assert_works(scene, child, 3)

    asyncio.run(run())
    assert [record.levelname for record in caplog.records if "not ended after" in record.message] == ["ERROR"]


async def assert_works(scene: Scene, child: PeerProcess, block: int) -> None:
    """Each way, and a notice."""
    scene.pool.fill(block, 10 * block)
    assert await scene.move("WRITE", child, [(block, block)]) is None
    assert child.layers(block) == [10 * block + layer for layer in range(4)]
    assert await scene.move("READ", child, [(block, 7)]) is None
    assert scene.pool.layers(7) == child.layers(block)
    told = Outcome(asyncio.get_running_loop())
    scene.transfers.notify(child.peer.rank.agent, encode(Landing(f"grant {block}", 5)), told.settle)
    assert await told.wait() is None
    assert child.hear().grant == f"grant {block}"


def test_a_peer_to_which_everything_is_stuck_is_left_and_met_again_once_something_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")

    async def run() -> None:
        async with open_scene(stall_s=1.0) as scene:
            child = await scene.start_peer("deaf", ucx_tls="tcp")
            rank = child.peer.rank
            stuck = []
            for number in range(1, MAX_LINES + 1):
                assert await scene.move("WRITE", child, [(0, 0)]) is None
                child.deafen()
                stuck.append(asyncio.ensure_future(scene.submit("WRITE", child, [(number, number)]).wait()))
                await wait_for(lambda: f"{len(stuck)} have not ended" in scene.transfers.ailment)
            scene.transfers.remove_peer(rank.agent)
            assert isinstance(await add(scene, rank), PeerGone)
            child.hear_again()
            assert await asyncio.gather(*stuck) == [None] * MAX_LINES
            assert await add(scene, rank) is None
            await assert_works(scene, child, 5)

    asyncio.run(run())


async def add(scene: Scene, rank: RankAgent) -> KvmeshError | None:
    met = Outcome(asyncio.get_running_loop())
    scene.transfers.add_peer(rank.agent, rank.metadata, met.settle)
    return await met.wait()


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_read_that_nobody_waits_for_any_more_gives_its_blocks_back_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    ended: list[bool] = []

    async def run() -> None:
        async with open_stopped(monkeypatch) as (scene, child):
            pull = Pull(scene.memory, lambda: ended.append(pull.is_on_way))
            reading = asyncio.ensure_future(pull.run(child.peer, BLOCKS, BLOCKS))
            await wait_for(lambda: pull.is_on_way)
            if is_cancelled:
                reading.cancel()
            with pytest.raises(asyncio.CancelledError if is_cancelled else DeadlineExceeded):
                await reading
            assert pull.is_on_way
            assert ended == []
            assert pull.is_left
            child.process.resume()
            await wait_for(lambda: ended == [False])
            assert pull.is_left

    asyncio.run(run())


def test_a_read_that_ends_before_its_caller_hears_that_it_is_stuck_is_no_late_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller gives the blocks back, and nobody else does."""
    ended: list[bool] = []

    async def run() -> None:
        async with open_stopped(monkeypatch) as (scene, child):
            pull = Pull(scene.memory, lambda: ended.append(True))
            reading = asyncio.ensure_future(pull.run(child.peer, BLOCKS, BLOCKS))
            await wait_for(lambda: pull.is_on_way)
            block_until(lambda: bool(scene.transfers.ailment))  # the loop is held up meanwhile
            child.process.resume()
            block_until(lambda: not scene.transfers.ailment)
            with pytest.raises(DeadlineExceeded):
                await reading
            assert not pull.is_on_way
            assert not pull.is_left

    asyncio.run(run())
    assert ended == []


def block_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_a_read_that_ends_in_time_is_told_of_once() -> None:
    ended: list[bool] = []

    async def run() -> None:
        async with open_scene() as scene:
            child = await scene.start_peer()
            child.fill(3, 70)
            pull = Pull(scene.memory, lambda: ended.append(True))
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
                await guard_threads(engine, scene.memory)
            may_go_on.set()
            assert await over.wait() is None
            await wait_for(lambda: scene.transfers.fault == "")

    asyncio.run(run())


def test_a_step_that_seemed_to_hang_and_ends_is_no_end_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the process was stopped for longer than a step may take. One that hangs on is."""
    may_end = [threading.Event(), threading.Event()]
    monkeypatch.setattr("workers.guards.DOUBT_S", 1.0)
    runner = WitnessRunner(12, 4)
    engine = Engine(runner, small_settings(step_stall_s=0.001), Listener())

    def hang() -> None:
        runner.during = partial(check_over, may_end[1])
        check_over(may_end[0])

    runner.during = hang

    async def run() -> None:
        async with open_scene(stall_s=STALL_S) as scene:
            guarding = asyncio.create_task(guard_threads(engine, scene.memory))
            engine.add(spec_of("a", [5, 6, 7], max_tokens=8))
            await wait_for(lambda: not engine.is_healthy)
            assert not (await asyncio.wait((guarding,), timeout=2 * LOOK_S))[0]
            may_end[0].set()
            with pytest.raises(InternalFault, match="a step takes over"):
                await guarding
            assert len(runner.batches) == 1

    with EngineThread(engine):
        try:
            asyncio.run(run())
        finally:
            for event in may_end:
                event.set()


def check_over(event: threading.Event) -> None:
    assert event.wait(LIMIT_S)
