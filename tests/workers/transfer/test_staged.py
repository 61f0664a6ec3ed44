"""KV by way of the host's memory: the same, whichever side has staging, and no peer touches the pool."""

import asyncio
from collections.abc import Sequence

import pytest

from proto.errors import KvmeshError
from tests.services.waiting import wait_for
from tests.workers.transfer.ranked import (
    GRANT,
    NUM_BLOCKS,
    NUM_TOKENS,
    SEQUENCE_BLOCKS,
    RankedWorker,
    begin_push,
    open_staged_workers,
    random_kv,
    share_out,
    write_layer_by_layer,
)
from tests.workers.transfer.scene import open_scene
from workers.transfer.outcome import Outcome
from workers.transfer.pull import Pull
from workers.transfer.staging import NUM_BUFFERS, StagingSize

SMALL = StagingSize(NUM_BLOCKS, 1)
"""Each buffer holds a block: what is larger takes several rounds."""
PAIRS = [("source",), ("target",), ("source", "target")]


async def stage(worker: RankedWorker, blocks: Sequence[int], staged: Sequence[int]) -> KvmeshError | None:
    shown = Outcome(asyncio.get_running_loop())
    worker.memory.stage(blocks, staged, shown.settle)
    return await shown.wait()


async def unstage(worker: RankedWorker, staged: Sequence[int], blocks: Sequence[int]) -> KvmeshError | None:
    fetched = Outcome(asyncio.get_running_loop())
    worker.memory.unstage(staged, blocks, fetched.settle)
    return await fetched.wait()


@pytest.mark.parametrize("staged", PAIRS, ids="-".join)
@pytest.mark.parametrize("grids", [((1, 1), (1, 1)), ((2, 1), (1, 2))], ids=["one to one", "TP2 to PP2"])
def test_what_is_pushed_and_pulled_is_the_same_whichever_side_has_staging(
    staged: tuple[str, ...], grids: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    shares = {name: share_out(*grid) for name, grid in zip(("source", "target"), grids, strict=True)}

    async def run() -> None:
        async with open_staged_workers(dict.fromkeys(staged, SMALL), **shares) as workers:
            source, target = workers["source"], workers["target"]
            strategies = [worker.memory.strategy for worker in (source, target)]
            assert strategies == ["host" if name in staged else "direct" for name in ("source", "target")]
            ours, theirs = random_kv(1), random_kv(2)
            source.lay(ours)
            target.lay(theirs)
            await push_whole(source, target)
            if "target" in staged:
                assert target.holds(theirs), "a peer touched the pool"
                assert await unstage(target, GRANT.blocks, [7, 0, 5]) is None
            theirs[[7, 0, 5]] = ours[SEQUENCE_BLOCKS[1:]]
            assert target.holds(theirs)
            shown = [0, 3]
            if "source" in staged:
                shown = [4, 1]
                assert await stage(source, [0, 3], shown) is None
            pull = Pull(target.memory, lambda: None)
            await pull.run(await target.meet(source), shown, [6, 2])
            theirs[[6, 2]] = ours[[0, 3]]
            assert target.holds(theirs)
            assert source.holds(ours)

    asyncio.run(run())


async def push_whole(source: RankedWorker, target: RankedWorker) -> None:
    push, faults = begin_push(source, await source.meet(target))
    write_layer_by_layer(push, source)
    await push.complete(SEQUENCE_BLOCKS)
    await push.land()
    await wait_for(lambda: bool(target.landings))
    assert not faults


def test_a_push_that_is_stopped_at_any_moment_gives_its_buffers_back() -> None:
    """Were one kept each time, the last push would have none."""

    async def run() -> None:
        both = {"source": SMALL, "target": SMALL}
        async with open_staged_workers(both, source=share_out(1, 1), target=share_out(1, 1)) as workers:
            source, target = workers["source"], workers["target"]
            source.lay(random_kv(1))
            peer = await source.meet(target)
            for number in range(2 * NUM_BUFFERS):
                push, _ = begin_push(source, peer)
                push.write_whole(0, NUM_TOKENS, SEQUENCE_BLOCKS)
                await asyncio.to_thread(sum, range(2_000 * number))
                push.stop()
                await push.wait_settled()
                assert not push.may_land_late
            await push_whole(source, target)
            assert await unstage(target, GRANT.blocks, GRANT.blocks) is None
            wanted = random_kv(1)
            wanted[:] = 0
            wanted[GRANT.blocks] = random_kv(1)[SEQUENCE_BLOCKS[1:]]
            assert target.holds(wanted)

    asyncio.run(run())


def test_writes_that_are_stuck_keep_their_buffers_and_hold_up_no_other_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What has no room waits, and can be called off. A round is too large for the buffers of a socket."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    num_blocks, num_heads, num_stuck = 64, 64, NUM_BUFFERS // 2
    blocks = [(block, block) for block in range(num_blocks)]
    refused: list[bool] = []

    async def run() -> None:
        async with open_scene(num_blocks, num_heads, 0.2, StagingSize(1, 16 * 2**20)) as scene:

            async def wait_stuck(num: int) -> None:
                await wait_for(lambda: f"{num} have not ended" in scene.transfers.ailment)

            live = await scene.start_peer("live", num_blocks, num_heads, "tcp")
            stopped = await scene.start_peer("stopped", num_blocks, num_heads, "tcp")
            assert await scene.move("WRITE", stopped, [(0, 0)]) is None
            stopped.process.suspend()
            scene.pool.fill(1, 10)
            stuck = []
            for number in range(num_stuck):
                stuck.append(scene.submit("WRITE", stopped, blocks))
                await wait_stuck(number + 1)
            is_wanted = asyncio.Event()
            is_wanted.set()
            scene.pool.fill(1, 50)
            scene.submit(
                "WRITE", stopped, blocks, may_start=is_wanted.is_set, on_refused=lambda: refused.append(True)
            )
            await wait_stuck(num_stuck + 1)
            assert await scene.move("WRITE", live, [(1, 3), (1, 4)]) is None
            assert live.layers(4) == [50, 51, 52, 53]
            is_wanted.clear()
            await wait_for(lambda: bool(refused))
            stopped.process.resume()
            assert [await over.wait() for over in stuck] == [None] * num_stuck
            assert stopped.layers(1) == [10, 11, 12, 13]
            await wait_for(lambda: scene.transfers.ailment == "")

    asyncio.run(run())
