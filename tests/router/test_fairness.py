"""Who gets the work while engines take their time: new workers, slow ones, and a prompt that all share."""

import asyncio
import time
from collections import Counter

import httpx
import msgspec

from proto import keys, subjects
from proto.cards import Presence
from proto.codec import decode, encode
from proto.control import Cancel
from proto.errors import GoElsewhere
from proto.requests import GenerateRequest, Queued, Stopping
from tests.router.load import Load
from tests.router.scene import Mesh, Play, a_request
from tests.router.scripted_worker import prompt_of
from tests.router.timed_engine import TimedEngine
from tests.services.waiting import wait_for

SEATS, STEP_S, PREFILL_RATE, ANSWER_TOKENS = 4, 0.01, 4000.0, 16


def an_engine(cache_blocks: int = 1000) -> TimedEngine:
    return TimedEngine(seats=SEATS, prefill_rate=PREFILL_RATE, step_s=STEP_S, cache_blocks=cache_blocks)


def request_of(prompt: bytes) -> GenerateRequest:
    return msgspec.structs.replace(a_request(prompt), stopping=Stopping(ANSWER_TOKENS))


def fresh_prompt(number: int) -> GenerateRequest:
    return request_of(prompt_of(1000 + number, 160))


def hot_prompt(number: int) -> GenerateRequest:
    """A system prompt that all share, and a question of one's own."""
    return request_of(prompt_of(7, 320) + prompt_of(1000 + number, 32))


async def start_workers(mesh: Mesh, num_workers: int) -> list[TimedEngine]:
    engines = [an_engine() for _ in range(num_workers)]
    for number, engine in enumerate(engines):
        await mesh.timed_worker(f"w{number}", engine)
    return engines


def test_a_new_idle_worker_gets_traffic_at_once(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        engines = await start_workers(mesh, 2)
        await mesh.router()
        newcomer = an_engine()
        load = Load(mesh, [*engines, newcomer])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.play_from(8, 2.0, hot_prompt), name="load")
            await wait_for(lambda: load.num_accepted > 20)
            await mesh.timed_worker("newcomer", newcomer)
            began_s = time.monotonic()
            await wait_for(lambda: newcomer.num_taken >= 3)
            assert time.monotonic() - began_s < 1.0

    play(scene)


def test_a_worker_that_is_slowed_fivefold_loses_its_share(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        engines = await start_workers(mesh, 3)
        await mesh.router()
        await Load(mesh, engines).play_from(6, 1.0, fresh_prompt)
        before = Counter({number: engine.num_taken for number, engine in enumerate(engines)})
        assert before[0] > before.total() / 5
        engines[0].slowness = 5.0
        await Load(mesh, engines).play_from(6, 1.5, lambda number: fresh_prompt(10_000 + number))
        after = Counter({number: engine.num_taken for number, engine in enumerate(engines)}) - before
        assert after[0] < after.total() / 6

    play(scene)


def test_one_hot_prompt_uses_every_worker_under_saturation_and_is_hit_nearly_always(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        engines = await start_workers(mesh, 4)
        await mesh.router()
        await Load(mesh, engines).play_from(4 * SEATS, 2.0, hot_prompt)
        shares = [engine.num_taken for engine in engines]
        assert min(shares) > sum(shares) / len(shares) / 2
        hit_rate = sum(e.hit_tokens for e in engines) / sum(e.prompt_tokens for e in engines)
        assert hit_rate > 0.7

    play(scene)


async def gauges_of(mesh: Mesh, router: str) -> dict[str, float]:
    entry = await mesh.directory.get(keys.router(mesh.ns, router))
    assert entry is not None
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{decode(entry.value, Presence).url}/metrics")).text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("kvmesh_route_"): float(value) for name, value in lines if "route" in name}


def test_after_errors_and_cancels_nothing_counts_as_load(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        engines = await start_workers(mesh, 2)
        await mesh.worker("refuses", refusal=GoElsewhere(worker="refuses", reason="draining"))
        await mesh.worker("mute", is_mute=True)
        router = await mesh.router(offer_limit_s=0.1, suspect_s=0.1, promise_ttl_s=0.5, queue_wait_s=0.2)
        await Load(mesh, engines).play_at(150.0, 1.0, fresh_prompt)
        cancelled = [fresh_prompt(20_000 + number) for number in range(40)]
        for request, reply in zip(cancelled, await asyncio.gather(*map(mesh.route, cancelled)), strict=True):
            if isinstance(reply, Queued):
                payload = encode(Cancel(request.request, request.attempt))
                await mesh.bus.request(subjects.router_control(mesh.ns, reply.router), payload, 2.0)
        names = ("promised_sequences", "promised_tokens", "queue_length", "requests_running")
        at_rest = dict.fromkeys(names, 0.0)
        async with asyncio.timeout(5.0):
            while not at_rest.items() <= (await gauges_of(mesh, router)).items():
                await mesh.bus.flush(1.0)

    play(scene)
