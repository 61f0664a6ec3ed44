"""Many routers: a new one is right before it takes requests, and follows what the others have chosen."""

import asyncio
import random
import time
from collections import Counter

import pytest

from proto.blockhash import HASH_BYTES
from proto.events import BlocksStored
from proto.requests import Routed
from tests.router.scene import Mesh, Play, a_request
from tests.router.scripted_worker import hashes_of, prompt_of
from workers.cache_mirror import PAGE_HASHES, CacheMirror


def test_a_new_router_knows_loads_before_it_takes_requests(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(3):
            busy = {"num_running": 6, "waiting_tokens": 50_000}
            await mesh.worker(f"w{number}", load={} if number == 1 else busy)
        await mesh.router()
        assert {await mesh.send(prompt_of(first, 64)) for first in range(5)} == {"w1"}

    play(scene)


def test_a_new_router_does_not_herd_onto_whom_the_others_have_just_chosen(play: Play) -> None:
    """No worker's report includes what it was promised, so all that the new one knows is what it heard."""

    async def scene(mesh: Mesh) -> None:
        workers = [await mesh.worker(f"w{number}", is_forgetful=True) for number in range(4)]
        first = await mesh.router()
        second = await mesh.router()
        routers: Counter[str] = Counter()
        for number in range(32):
            reply = await mesh.route(a_request(prompt_of(number, 320)))
            assert isinstance(reply, Routed)
            routers[reply.decision.router] += 1
            await mesh.bus.flush(1.0)
        assert set(routers) == {first, second}
        assert sorted(len(worker.taken) for worker in workers) == [8, 8, 8, 8]

    play(scene)


def test_a_router_that_starts_under_load_spreads_with_the_others_from_its_first_choice(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        workers = [await mesh.worker(f"w{number}", max_sequences=64) for number in range(4)]
        await mesh.router()
        numbers = iter(range(10_000))

        async def send_on(is_over: asyncio.Event) -> None:
            while not is_over.is_set():
                await mesh.send(prompt_of(next(numbers), 320))

        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_on(is_over), name="load")
            newcomer = await mesh.router()
            chosen = [len(worker.taken) for worker in workers]
            for _ in range(60):
                await mesh.send(prompt_of(next(numbers), 320))
            is_over.set()
        of_newcomer = [
            routed.decision.worker
            for worker, before in zip(workers, chosen, strict=True)
            for routed in worker.taken[before:]
            if routed.decision.router == newcomer
        ]
        assert len(of_newcomer) >= 10
        assert max(Counter(of_newcomer).values()) <= len(of_newcomer) / 2

    play(scene)


async def seconds_to_learn(mesh: Mesh, num_blocks: int) -> float:
    """Of the processor, worker's share included, until a new router takes requests and knows `num_blocks`."""
    worker = await mesh.worker("w0")
    mirror = CacheMirror(worker.name, worker.incarnation)
    prompt = prompt_of(7, 640)
    mirror.tell([BlocksStored(random.Random(1).randbytes(num_blocks * HASH_BYTES) + hashes_of(prompt))])
    worker.mirror = mirror
    began_s = time.process_time()
    await mesh.router(warm_limit_s=60.0)
    took_s = time.process_time() - began_s
    reply = await mesh.route(a_request(prompt))
    assert isinstance(reply, Routed)
    assert reply.decision.prefix_tokens == 639
    assert worker.num_snapshots == 1
    return took_s


def test_a_new_router_is_right_about_many_pages_before_it_takes_requests(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await seconds_to_learn(mesh, 5 * PAGE_HASHES)

    play(scene)


@pytest.mark.slow
def test_a_new_router_is_right_about_a_million_blocks_within_seconds(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        assert await seconds_to_learn(mesh, 1 << 20) < 4.0

    play(scene, limit_s=60.0)
