"""A long prompt is read while the worker takes others; what happens meanwhile is heeded at its end."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from proto.errors import GoElsewhere
from proto.names import new_id
from proto.requests import Decision, GenerateRequest, RoutedRequest, Sampling, Stopping
from proto.roles import WorkerState
from proto.tokens import pack_tokens
from services.servers import Server
from tests.workers.harness import random_prompt
from tests.workers.simulated.scene import MODEL, settings_of
from workers.assembly import Parts
from workers.request_spec import sequence_name
from workers.simulated.process import open_simulation
from workers.simulated.settings import SimulateSettings
from workers.simulated.worker import SimulatedWorker

SHORT, LONG = 8, 50_000
ROUTER = "r"
Body = Callable[[SimulatedWorker, Parts], Awaitable[None]]


@pytest.fixture
def settings(nats_server: Server, etcd_server: Server, text_folder: Path) -> SimulateSettings:
    return settings_of(
        nats_server, etcd_server, text_folder, workers=1, context_tokens=2**17, num_blocks=2**14
    )


def run_alone(settings: SimulateSettings, body: Body) -> None:
    async def run() -> None:
        async with open_simulation(settings) as crowd:
            (worker,) = crowd.workers.values()
            assert worker.parts is not None
            await body(worker, worker.parts)

    asyncio.run(run())


def routed_of(worker: SimulatedWorker, number: int, prompt: list[int]) -> RoutedRequest:
    request = GenerateRequest(
        request=new_id(),
        attempt=0,
        model=MODEL,
        client=new_id(),
        prompt=pack_tokens(prompt),
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(1, ignore_eos=True),
        deadline_s=60.0,
    )
    return RoutedRequest(request, Decision(ROUTER, number, worker.term.worker, worker.term.epoch, 0))


def is_served(parts: Parts, routed: RoutedRequest) -> bool:
    name = sequence_name(routed.request.request, routed.request.attempt)
    return parts.decode_desk.served.find(name) is not None


def test_a_short_request_is_taken_while_a_long_one_is_read(settings: SimulateSettings) -> None:
    async def body(worker: SimulatedWorker, parts: Parts) -> None:
        desk = parts.decode_desk
        long = routed_of(worker, 1, random_prompt(LONG, 1))
        short = routed_of(worker, 2, random_prompt(SHORT, 2))
        async with asyncio.TaskGroup() as tasks:
            taking = tasks.create_task(desk.accept(long), name="long")
            await asyncio.sleep(0)
            await desk.accept(short)
            assert is_served(parts, short)
            assert not taking.done()
            assert desk.decisions.included() == {ROUTER: 0}
        assert is_served(parts, long)
        assert desk.decisions.included() == {ROUTER: 2}

    run_alone(settings, body)


def test_a_request_that_is_cancelled_while_it_is_read_never_begins(settings: SimulateSettings) -> None:
    async def body(worker: SimulatedWorker, parts: Parts) -> None:
        desk, long = parts.decode_desk, routed_of(worker, 1, random_prompt(LONG, 1))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(desk.accept(long), name="long")
            await asyncio.sleep(0)
            desk.cancel(long.request.request, long.request.attempt)
        assert not is_served(parts, long)
        assert worker.ground is not None
        assert worker.ground.engine.load().prompt_tokens == 0

    run_alone(settings, body)


def test_a_request_that_comes_twice_while_it_is_read_is_taken_once(settings: SimulateSettings) -> None:
    async def body(worker: SimulatedWorker, parts: Parts) -> None:
        long = routed_of(worker, 1, random_prompt(LONG, 1))
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(parts.decode_desk.accept(long), name=f"time {number}")
        assert worker.ground is not None
        assert worker.ground.engine.load().prompt_tokens == LONG

    run_alone(settings, body)


def test_a_worker_that_drains_while_it_reads_sends_the_request_elsewhere(settings: SimulateSettings) -> None:
    async def body(worker: SimulatedWorker, parts: Parts) -> None:
        long = routed_of(worker, 1, random_prompt(LONG, 1))
        taking = asyncio.ensure_future(parts.decode_desk.accept(long))
        await asyncio.sleep(0)
        worker.term.turn(WorkerState.DRAINING)
        with pytest.raises(GoElsewhere):
            await taking
        assert not is_served(parts, long)

    run_alone(settings, body)
