"""What happens to requests while every worker is full, and when the router ends."""

import asyncio
from collections.abc import Awaitable

import msgspec
import pytest

from proto import subjects
from proto.codec import encode
from proto.control import CONTROL_REPLIES, Cancel, Done
from proto.errors import (
    NoResponder,
    Overloaded,
)
from proto.names import new_id
from proto.requests import (
    GenerateRequest,
    Queued,
    Routed,
)
from proto.roles import WorkerState
from proto.streams import STREAM_MESSAGES, Frame, StepFrames
from proto.tokens import pack_tokens
from services.bus import Delivery
from tests.router.scene import CLIENT, Mesh, Play, a_request, running_router
from tests.router.scripted_worker import ScriptedWorker, prompt_of
from tests.services.waiting import wait_for


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
        urgent = a_request(prompt_of(2, 64), priority=-5)
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


def test_a_full_queue_makes_room_for_who_is_more_urgent_and_says_so_to_who_leaves(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await full_worker(mesh)
        await mesh.router(queue_limit=1)
        frames = await frames_of(mesh)
        patient, urgent = a_request(prompt_of(1, 64), priority=5), a_request(prompt_of(2, 64))
        assert isinstance(await mesh.route(patient), Queued)
        assert isinstance(await mesh.route(urgent), Queued)
        frame = await frames.get()
        assert frame.request == patient.request
        assert frame.end is not None
        assert frame.end.fault is not None
        assert frame.end.fault.code == "overloaded"
        assert isinstance(await mesh.refusal(prompt_of(3, 64), priority=5), Overloaded)

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


def test_two_attempts_of_one_request_may_be_on_their_way_at_once(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await full_worker(mesh)
        await mesh.worker("stays-full", max_sequences=4, load={"num_running": 4, "num_waiting": 1})
        await mesh.router()
        request = a_request(prompt_of(1, 64))
        again = msgspec.structs.replace(request, attempt=request.attempt + 1)
        for attempt in (request, again):
            assert isinstance(await mesh.route(attempt), Queued)
        worker.refusal, worker.load = Overloaded(reason="full", retry_after_s=1.0), {}
        await wait_for(lambda: worker.offered >= 2)
        worker.refusal = None
        await wait_for(lambda: len(worker.taken) == 2)
        assert {routed.request.attempt for routed in worker.taken} == {request.attempt, again.attempt}
        await mesh.route_at_last(a_request(prompt_of(2, 64)))

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
