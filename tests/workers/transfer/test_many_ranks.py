"""KV between workers whose ranks share it out differently: each rank moves its part, and none is missing."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np
import pytest

from proto.errors import LayoutMismatch, PeerGone
from proto.layout import LayerRange
from proto.names import new_id
from tests.services.waiting import wait_for
from tests.workers.transfer.ranked import (
    GRANT,
    NUM_TOKENS,
    SEQUENCE_BLOCKS,
    RankedWorker,
    begin_push,
    open_workers,
    random_kv,
    share_out,
    write_layer_by_layer,
)
from workers.transfer.pull import Pull

GRIDS = {
    "TP2 to PP2": ((2, 1), (1, 2)),
    "one to TP2": ((1, 1), (2, 1)),
    "PP2 to one": ((1, 2), (1, 1)),
    "TP2 to one": ((2, 1), (1, 1)),
    "TP2xPP2 to one": ((2, 2), (1, 1)),
    "each head twice to TP2": ((8, 1), (2, 1)),
    "PP2 to each head twice": ((1, 2), (8, 1)),
}


@pytest.mark.parametrize(("source_grid", "target_grid"), GRIDS.values(), ids=GRIDS.keys())
def test_what_is_pushed_and_pulled_is_the_same_however_both_workers_are_sharded(
    source_grid: tuple[int, int], target_grid: tuple[int, int]
) -> None:
    async def run() -> None:
        grids = {"source": share_out(*source_grid), "target": share_out(*target_grid)}
        async with open_workers(**grids) as workers:
            source, target = workers["source"], workers["target"]
            ours, theirs = random_kv(1), random_kv(2)
            source.lay(ours)
            target.lay(theirs)
            push, faults = begin_push(source, await source.meet(target))
            write_layer_by_layer(push, source)
            await push.complete(SEQUENCE_BLOCKS)
            await push.land()
            await wait_for(lambda: bool(target.landings))
            theirs[GRANT.blocks] = ours[SEQUENCE_BLOCKS[1:]]
            assert target.holds(theirs)
            assert source.holds(ours)
            assert not faults
            (landing,) = target.landings
            assert sum(source.moved) == landing.num_bytes == 3 * target.memory.block_bytes
            pull = Pull(target.memory, lambda: None)
            await pull.run(await target.meet(source), [0, 3], [6, 2])
            theirs[[6, 2]] = ours[[0, 3]]
            assert target.holds(theirs)
            assert source.holds(ours)

    asyncio.run(run())


def run_pair(body: Callable[[RankedWorker, RankedWorker], Awaitable[None]]) -> None:
    """`body` gets two workers, of two slices and of two stages; the first one holds the KV of seed 1."""

    async def run() -> None:
        async with open_workers(source=share_out(2, 1), target=share_out(1, 2)) as workers:
            workers["source"].lay(random_kv(1))
            await body(workers["source"], workers["target"])

    asyncio.run(run())


def test_what_one_rank_wrote_twice_or_from_elsewhere_or_never_is_written_once_more() -> None:
    async def body(source: RankedWorker, target: RankedWorker) -> None:
        wanted = random_kv(2)
        target.lay(wanted)
        push, faults = begin_push(source, await source.meet(target))
        whole = source.memory.pools[0].layers
        push.write(0, 0, 32, SEQUENCE_BLOCKS[:2], whole)
        push.write(0, 32, 56, SEQUENCE_BLOCKS[2:], whole)
        push.write(1, 0, 32, [3, 0], whole)
        push.write(1, 0, 32, SEQUENCE_BLOCKS[:2], LayerRange(0, 4))
        await push.complete(SEQUENCE_BLOCKS)
        wanted[GRANT.blocks] = random_kv(1)[SEQUENCE_BLOCKS[1:]]
        assert target.holds(wanted)
        assert not faults

    run_pair(body)


def test_two_workers_have_met_when_each_pair_of_their_ranks_has() -> None:
    async def body(source: RankedWorker, target: RankedWorker) -> None:
        card = target.memory.card(target.name, target.incarnation)
        first, second = card.ranks
        broken = msgspec.structs.replace(second, metadata=b"none")
        source.agents.learn(msgspec.structs.replace(card, ranks=[first, broken]))
        for _ in range(2):
            with pytest.raises(PeerGone):
                await source.meet(target)
        source.agents.learn(card)
        peer = await source.meet(target)
        source.peers.part(peer)
        push, _ = begin_push(source, await source.meet(target))
        push.write_whole(0, NUM_TOKENS, SEQUENCE_BLOCKS)
        await push.complete(SEQUENCE_BLOCKS)
        wanted = np.zeros_like(random_kv(1))
        wanted[GRANT.blocks] = random_kv(1)[SEQUENCE_BLOCKS[1:]]
        assert target.holds(wanted)

    run_pair(body)


def test_a_worker_whose_ranks_lack_a_layer_together_is_refused_by_its_name() -> None:
    async def body(source: RankedWorker, target: RankedWorker) -> None:
        card = target.memory.card("half", new_id())
        source.agents.on_new(source.peers.judge)
        source.agents.learn(msgspec.structs.replace(card, ranks=card.ranks[:1]))
        assert not source.peers.can_move("half", card.incarnation)
        assert source.peers.can_move(target.name, target.incarnation)
        with pytest.raises(LayoutMismatch, match=r"half.*layers 3"):
            await source.peers.meet("half", card.incarnation)

    run_pair(body)
