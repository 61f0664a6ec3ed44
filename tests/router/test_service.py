"""The router as a service: real NATS, real etcd, and scripted workers that say what a test needs."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from proto import keys, subjects
from proto.cards import Presence
from proto.codec import decode, encode
from proto.control import CONTROL_REPLIES, Cancel, Done
from proto.errors import (
    GoElsewhere,
    InvalidRequest,
    KvmeshError,
    NoResponder,
    NoWorker,
    Overloaded,
    PromptTooLong,
    UnknownModel,
    from_fault,
)
from proto.names import new_id
from proto.requests import (
    ROUTE_REPLIES,
    GenerateRequest,
    Queued,
    Refused,
    Routed,
    RouteReply,
    Sampling,
    Stopping,
)
from proto.roles import WorkerState
from proto.streams import STREAM_MESSAGES, Frame, StepFrames
from proto.tokens import pack_tokens
from router.service import serve_router
from router.settings import RouterSettings
from services.bus import Bus, BusSettings, Delivery, open_bus
from services.directory import Changed, Directory, DirectorySettings, Listed, open_directory
from services.mesh_settings import MeshSettings
from services.servers import Server
from tests.router.scripted_worker import MODEL, ScriptedWorker, prompt_of, run_worker
from tests.services.waiting import wait_for

LIMIT_S = 20.0
CLIENT = "the-frontend"


class Mesh:
    """A namespace with a model, and whatever workers and routers a test starts in it."""

    def __init__(
        self, ns: str, bus: Bus, directory: Directory, settings: RouterSettings, stack: AsyncExitStack
    ) -> None:
        self.ns = ns
        self.bus = bus
        self.directory = directory
        self.settings = settings
        self._stack = stack

    async def worker(self, name: str, **fields: Any) -> ScriptedWorker:
        def prepare(worker: ScriptedWorker) -> None:
            for field, value in fields.items():
                setattr(worker, field, value)

        running = run_worker(self.bus, self.directory, self.ns, name, prepare)
        return await self._stack.enter_async_context(running)

    async def router(self, **fields: Any) -> str:
        """A router that takes requests; its id."""
        router = f"router-{new_id()}"
        settings = msgspec.structs.replace(self.settings, **fields)
        await self._stack.enter_async_context(running_router(settings, router))
        await self.wait_registered(router)
        return router

    async def wait_registered(self, router: str) -> None:
        async with self.directory.watch(keys.router(self.ns, router)) as changes:
            async for change in changes:
                if isinstance(change, Changed) or (isinstance(change, Listed) and change.entries):
                    return

    async def is_registered(self, router: str) -> bool:
        return await self.directory.get(keys.router(self.ns, router)) is not None

    async def route(self, request: GenerateRequest) -> RouteReply:
        payload = await self.bus.request(subjects.route(self.ns, request.model), encode(request), 5.0)
        return ROUTE_REPLIES.decode(payload)

    async def route_at_last(self, request: GenerateRequest) -> Routed:
        """As `route`, again while no worker is ready."""
        async with asyncio.timeout(5.0):
            while not isinstance(reply := await self.route(request), Routed):
                assert isinstance(reply, Refused)
                assert reply.fault.code == "no_worker"
        return reply

    async def send(self, prompt: bytes, **fields: Any) -> str:
        """The worker that a request with this prompt goes to."""
        reply = await self.route(a_request(prompt, **fields))
        assert isinstance(reply, Routed), reply
        return reply.decision.worker

    async def refusal(self, prompt: bytes, **fields: Any) -> KvmeshError:
        reply = await self.route(a_request(prompt, **fields))
        assert isinstance(reply, Refused), reply
        return from_fault(reply.fault)


def a_request(prompt: bytes, **fields: Any) -> GenerateRequest:
    request = GenerateRequest(
        new_id(), 1, MODEL.name, CLIENT, prompt, Sampling(), Stopping(32), deadline_s=30.0
    )
    return msgspec.structs.replace(request, **fields)


@asynccontextmanager
async def running_router(settings: RouterSettings, router: str) -> AsyncIterator[asyncio.Event]:
    """A router for the time of the body; the event ends it."""
    shutdown = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_router(settings, router, shutdown), name=router)
        try:
            yield shutdown
        finally:
            shutdown.set()


@pytest.fixture
def play(
    nats_server: Server, etcd_server: Server, namespace: str
) -> Callable[[Callable[[Mesh], Awaitable[None]]], None]:
    """`play(scene)`: runs `scene(mesh)` in a namespace of its own."""
    settings = RouterSettings(
        mesh=MeshSettings(ns=namespace, beat_s=0.4, lost_after_s=1.0, drain_limit_s=0.4),
        bus=BusSettings(url=nats_server.url),
        directory=DirectorySettings(endpoints=[etcd_server.url]),
    )

    async def run(scene: Callable[[Mesh], Awaitable[None]]) -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            open_bus(settings.bus, "test") as bus,
            open_directory(settings.directory) as directory,
            AsyncExitStack() as stack,
        ):
            await directory.put(keys.model(namespace, MODEL.name), encode(MODEL))
            await scene(Mesh(namespace, bus, directory, settings, stack))

    return lambda scene: asyncio.run(run(scene))


Play = Callable[[Callable[[Mesh], Awaitable[None]]], None]


def test_a_request_goes_to_the_holder_of_its_prefix(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        workers = [await mesh.worker(f"w{number}") for number in range(4)]
        await mesh.router()
        prompt = prompt_of(7, 640)
        await workers[2].store(prompt)
        await mesh.bus.flush(1.0)
        for tail in range(5):
            reply = await mesh.route(a_request(prompt + prompt_of(tail, 20)))
            assert isinstance(reply, Routed)
            assert reply.decision.worker == "w2"
            assert reply.decision.prefix_tokens == 640

    play(scene)


def test_a_router_that_starts_later_learns_what_is_cached_from_snapshots(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        workers = [await mesh.worker(f"w{number}") for number in range(3)]
        prompt = prompt_of(7, 640)
        await workers[1].store(prompt, is_lost=True)
        await mesh.router()
        assert await mesh.send(prompt) == "w1"
        assert [worker.num_snapshots for worker in workers] == [0, 1, 0]

    play(scene)


def test_a_lost_event_leads_to_a_snapshot(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        lost, kept = prompt_of(7, 640), prompt_of(8, 640)
        await worker.store(lost, is_lost=True)
        await worker.store(kept)

        await wait_for(lambda: worker.num_snapshots == 1)
        reply = await mesh.route(a_request(lost + prompt_of(1, 20), exclude=["w1"]))
        assert isinstance(reply, Routed)
        assert reply.decision.prefix_tokens == 640

    play(scene)


def test_siblings_follow_the_first_of_them_before_any_event(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(4):
            await mesh.worker(f"w{number}", max_sequences=100)
        await mesh.router()
        prompt = prompt_of(3, 4800)
        chosen = {await mesh.send(prompt + prompt_of(tail, 20)) for tail in range(8)}
        assert len(chosen) == 1

    play(scene)


def test_routers_hear_one_anothers_choices(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(4):
            await mesh.worker(f"w{number}", max_sequences=100)
        for _ in range(3):
            await mesh.router()
        prompt = prompt_of(3, 4800)
        routers, chosen = set(), set()
        for tail in range(12):
            reply = await mesh.route(a_request(prompt + prompt_of(tail, 20)))
            assert isinstance(reply, Routed)
            routers.add(reply.decision.router)
            chosen.add(reply.decision.worker)
            await mesh.bus.flush(1.0)
        assert len(routers) > 1
        assert len(chosen) == 1

    play(scene)


def test_load_spreads_over_idle_workers(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(4):
            await mesh.worker(f"w{number}")
        await mesh.router()
        chosen = await asyncio.gather(*(mesh.send(prompt_of(first, 320)) for first in range(24)))
        assert sorted(Counter(chosen).values()) == [6, 6, 6, 6]

    play(scene)


def test_one_shared_prefix_does_not_send_everything_to_one_worker(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(3):
            await mesh.worker(f"w{number}", load={"decode_step_s": 0.02})
        await mesh.router()
        system = prompt_of(5, 320)
        requests = (mesh.send(system + prompt_of(tail, 20)) for tail in range(24))
        assert len(Counter(await asyncio.gather(*requests))) == 3

    play(scene)


def test_a_slow_worker_loses_its_share(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(3):
            slow = {"prefill_rate": 200.0, "decode_step_s": 0.005}
            await mesh.worker(f"w{number}", max_sequences=40, load=slow if number == 0 else {})
        await mesh.router()
        chosen = await asyncio.gather(*(mesh.send(prompt_of(first, 320)) for first in range(33)))
        assert Counter(chosen)["w0"] <= 4

    play(scene)


def test_a_worker_that_left_without_a_word_is_passed_over_at_once(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        gone, there = await mesh.worker("w0"), await mesh.worker("w1")
        await mesh.router()
        prompt = prompt_of(7, 640)
        await gone.store(prompt)
        await gone.unsubscribe()
        async with asyncio.timeout(0.9):
            assert await mesh.send(prompt) == "w1"
        assert len(there.taken) == 1

    play(scene)


def test_a_worker_that_does_not_answer_is_passed_over_and_then_avoided(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        mute = await mesh.worker("w0", is_mute=True)
        await mesh.worker("w1")
        await mesh.router(offer_limit_s=0.3, suspect_s=60.0)
        prompt = prompt_of(7, 640)
        await mute.store(prompt)
        await mesh.bus.flush(1.0)
        for _ in range(3):
            assert await mesh.send(prompt) == "w1"
        assert mute.offered == 1

    play(scene)


def test_a_draining_worker_sends_new_work_elsewhere(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        draining = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        prompt = prompt_of(7, 640)
        await draining.store(prompt)
        draining.state = WorkerState.DRAINING
        await draining.report()
        await mesh.bus.flush(1.0)
        assert await mesh.send(prompt) == "w1"
        assert draining.offered == 0

    play(scene)


def test_a_refusal_that_only_this_worker_means_costs_the_client_nothing(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        unwilling = await mesh.worker("w0", refusal=GoElsewhere(worker="w0", reason="draining"))
        await mesh.worker("w1")
        await mesh.router()
        await unwilling.store(prompt_of(7, 640))
        assert await mesh.send(prompt_of(7, 640)) == "w1"

    play(scene)


def test_a_refusal_that_every_worker_would_repeat_is_the_answer(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        refusal = InvalidRequest(field="top_p", reason="is 7")
        workers = [await mesh.worker(f"w{number}", refusal=refusal) for number in range(2)]
        await mesh.router()
        assert isinstance(await mesh.refusal(prompt_of(1, 64)), InvalidRequest)
        assert sum(worker.offered for worker in workers) == 1

    play(scene)


def test_excluded_workers_are_not_chosen(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        holder = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        await holder.store(prompt_of(7, 640))
        assert await mesh.send(prompt_of(7, 640), exclude=["w0"]) == "w1"
        assert isinstance(await mesh.refusal(prompt_of(7, 640), exclude=["w0", "w1"]), NoWorker)

    play(scene)


def test_without_a_worker_the_answer_says_so_at_once(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await mesh.router()
        assert isinstance(await mesh.refusal(prompt_of(1, 64)), NoWorker)

    play(scene)


def test_an_unknown_model_and_an_impossible_prompt_are_the_callers_fault(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await mesh.worker("w0")
        await mesh.router()
        assert isinstance(await mesh.refusal(prompt_of(1, 64), model="no/such"), UnknownModel)
        assert isinstance(await mesh.refusal(b""), InvalidRequest)
        assert isinstance(await mesh.refusal(b"\0" * 5), InvalidRequest)
        assert isinstance(await mesh.refusal(prompt_of(1, 65_537)), PromptTooLong)

    play(scene)


def test_tokens_of_earlier_attempts_count_as_prompt(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        holder = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        prompt, generated = prompt_of(7, 320), pack_tokens(range(320))
        await holder.store(prompt + generated)
        await mesh.bus.flush(1.0)
        reply = await mesh.route(a_request(prompt, generated=generated, offset=320, attempt=2))
        assert isinstance(reply, Routed)
        assert reply.decision.prefix_tokens == 639

    play(scene)


def test_a_new_incarnation_has_an_empty_cache(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await mesh.worker("w0")
        await mesh.router()
        prompt = prompt_of(7, 640)
        await worker.store(prompt)
        worker.incarnation, worker.cache, worker.num_events = "w0-second-life", b"", 0
        await worker.register()
        await worker.report()

        reply = await mesh.route_at_last(a_request(prompt))
        assert reply.decision.prefix_tokens == 0

    play(scene)


async def frames_of(mesh: Mesh) -> asyncio.Queue[Frame]:
    """What comes on the client's stream."""
    frames: asyncio.Queue[Frame] = asyncio.Queue()

    def take(delivery: Delivery) -> None:
        message = STREAM_MESSAGES.decode(delivery.payload)
        assert isinstance(message, StepFrames)
        for frame in message.frames:
            frames.put_nowait(frame)

    await mesh.bus.subscribe(subjects.stream(mesh.ns, CLIENT), take)
    return frames


def full_worker(mesh: Mesh) -> Awaitable[ScriptedWorker]:
    return mesh.worker("w0", max_sequences=4, load={"num_running": 4, "num_waiting": 1})


def test_a_request_waits_while_every_worker_is_full_and_goes_on_when_one_has_room(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await full_worker(mesh)
        await mesh.router()
        first = a_request(prompt_of(1, 64))
        urgent = a_request(prompt_of(2, 64), priority=5)
        for request in (first, urgent):
            assert isinstance(await mesh.route(request), Queued)
        assert worker.offered == 0
        worker.load = {"num_running": 4}
        await wait_for(lambda: len(worker.taken) == 1)
        assert worker.taken[0].request.request == urgent.request
        worker.load = {}
        await wait_for(lambda: len(worker.taken) == 2)
        assert worker.taken[1].request.request == first.request
        assert worker.taken[1].request.deadline_s < first.deadline_s

    play(scene)


def test_a_full_queue_refuses_and_says_when_to_come_again(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await full_worker(mesh)
        await mesh.router(queue_limit=2)
        for first in range(2):
            assert isinstance(await mesh.route(a_request(prompt_of(first, 64))), Queued)
        refusal = await mesh.refusal(prompt_of(9, 64))
        assert isinstance(refusal, Overloaded)
        assert float(refusal.values["retry_after_s"]) >= 1.0

    play(scene)


def test_a_wait_that_would_pass_the_deadline_is_refused_at_once(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await mesh.worker(
            "w0", max_sequences=4, load={"num_running": 4, "num_waiting": 1, "decode_step_s": 1.0}
        )
        await mesh.router()
        assert isinstance(await mesh.refusal(prompt_of(9, 64), deadline_s=5.0), Overloaded)

    play(scene)


def test_a_queued_request_whose_deadline_passes_ends_on_its_stream(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await full_worker(mesh)
        await mesh.router()
        frames = await frames_of(mesh)
        request = a_request(
            prompt_of(1, 64), deadline_s=0.5, attempt=3, offset=2, generated=pack_tokens([1, 2])
        )
        assert isinstance(await mesh.route(request), Queued)
        frame = await frames.get()
        assert (frame.request, frame.attempt, frame.offset) == (request.request, 3, 2)
        assert frame.end is not None
        assert frame.end.fault is not None
        assert frame.end.fault.code == "deadline_exceeded"

    play(scene)


def test_a_queued_request_ends_when_its_last_worker_is_gone(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await full_worker(mesh)
        await mesh.router()
        frames = await frames_of(mesh)
        assert isinstance(await mesh.route(a_request(prompt_of(1, 64))), Queued)
        worker.state = WorkerState.LEAVING
        frame = await frames.get()
        assert frame.end is not None
        assert frame.end.fault is not None
        assert frame.end.fault.code == "no_worker"

    play(scene)


def test_a_cancelled_request_leaves_the_queue(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await full_worker(mesh)
        router = await mesh.router()
        cancelled, kept = a_request(prompt_of(1, 64)), a_request(prompt_of(2, 64))
        for request in (cancelled, kept):
            assert isinstance(await mesh.route(request), Queued)
        await cancel(mesh, router, cancelled)
        worker.load = {}
        await wait_for(lambda: bool(worker.taken))
        assert isinstance(await mesh.route(a_request(prompt_of(3, 64))), Routed)
        assert [routed.request.request for routed in worker.taken].count(cancelled.request) == 0

    play(scene)


def test_a_cancel_follows_a_queued_request_to_its_worker(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await full_worker(mesh)
        router = await mesh.router()
        request = a_request(prompt_of(1, 64))
        assert isinstance(await mesh.route(request), Queued)
        worker.load = {}
        await wait_for(lambda: bool(worker.taken))
        await cancel(mesh, router, request)
        await wait_for(lambda: worker.cancelled == [Cancel(request.request, 1)])

    play(scene)


async def cancel(mesh: Mesh, router: str, request: GenerateRequest) -> None:
    payload = encode(Cancel(request.request, request.attempt))
    answer = await mesh.bus.request(subjects.router_control(mesh.ns, router), payload, 2.0)
    assert CONTROL_REPLIES.decode(answer) == Done()


def test_a_router_that_ends_unregisters_first_and_leaves_no_request_unanswered(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await full_worker(mesh)
        frames = await frames_of(mesh)
        router = f"router-{new_id()}"
        async with running_router(mesh.settings, router) as shutdown:
            await mesh.wait_registered(router)
            assert isinstance(await mesh.route(a_request(prompt_of(1, 64))), Queued)
            shutdown.set()
        assert not await mesh.is_registered(router)
        frame = await frames.get()
        assert frame.end is not None
        assert frame.end.fault is not None
        assert frame.end.fault.code == "overloaded"
        with pytest.raises(NoResponder):
            await mesh.route(a_request(prompt_of(1, 64)))

    play(scene)


def test_promised_and_real_hits_are_counted_side_by_side(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await mesh.worker("w0")
        router = await mesh.router()
        await worker.store(prompt_of(7, 640))
        assert await mesh.send(prompt_of(7, 640)) == "w0"
        worker.load = {"hit_tokens": 639, "prompt_tokens": 640}
        await worker.report()
        await mesh.bus.flush(1.0)
        assert await mesh.send(prompt_of(9, 64)) == "w0"
        entry = await mesh.directory.get(keys.router(mesh.ns, router))
        assert entry is not None
        url = decode(entry.value, Presence).url
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/readyz")).status_code == 200
            lines = (await client.get(f"{url}/metrics")).text.splitlines()
        for line in (
            "kvmesh_route_promised_hit_tokens_total 639.0",
            "kvmesh_route_real_hit_tokens_total 639.0",
            "kvmesh_route_index_blocks 40.0",
            "kvmesh_route_workers 1.0",
            "kvmesh_route_queue_length 0.0",
            'kvmesh_route_decisions_total{outcome="sent"} 2.0',
        ):
            assert line in lines

    play(scene)
