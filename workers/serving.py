"""A worker among others: subscribed, beating, registered; and all of it backwards at the end."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress

from proto import subjects
from proto.cards import WorkerCard
from proto.errors import DeadlineExceeded, Disconnected, InternalFault
from proto.roles import DrainMode, WorkerState
from services.bus import Bus, Subscription, Wish
from services.liveness import Beats, BeatSettings, send_beats
from services.mesh_settings import MeshSettings
from services.tasks import open_tasks
from workers.assembly import Ground, Parts
from workers.engine.step import SequenceProgress
from workers.registration import Registration
from workers.roles.standing import Standing

GIVE_BACK_S = 1.0
LINGER_S = 0.5
"""How long a leaver says "go elsewhere" at least: routers offer it work until they hear of its leaving."""

log = logging.getLogger(__name__)


async def serve(
    ground: Ground,
    parts: Parts,
    registration: Registration,
    companions: Mapping[str, Coroutine[None, None, None]],
    shutdown: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    """Serve until `shutdown` is set. Registered after subscribed; unregistered before unsubscribed.

    Args:
        companions: what else goes on meanwhile, by name; what one raises ends the worker.
        on_ready: called once the worker is registered.
    """
    mesh, term, bus = ground.settings.mesh, ground.term, ground.bus
    async with open_tasks() as tasks:
        running = [
            tasks.create_task(life, name=name) for name, life in {**parts.lives(), **companions}.items()
        ]
        subscriptions = await _subscribe(bus, mesh.ns, term.worker, parts)
        subject = subjects.beat(mesh.ns, term.worker)
        async with send_beats(bus, subject, parts.reporter.payload, beat_settings(mesh)) as beats:
            ground.bridge.connect(lambda events: _take_step(parts, beats, events))
            parts.prefill_desk.on_change(beats.hurry)
            parts.publisher.on_change(beats.hurry)
            await registration.publish_agent()
            await registration.publish(term)
            # Who began to listen after the first beat may have looked before we were listed.
            await beats.send_if_sure()
            standing = Standing(
                term,
                registration,
                ground.directory,
                mesh.ns,
                on_news=lambda: _spread(ground, parts, beats),
                is_lost=ground.neighbours.is_lost,
            )
            parts.drainer.connect(standing)
            parts.role_switch.connect(standing)
            on_ready()
            await shutdown.wait()
            await _leave(ground, parts, registration, beats)
        for subscription in subscriptions:
            await subscription.close()
        for task in running:
            task.cancel()
    if parts.patrol.is_overdue:
        raise InternalFault(reason="blocks were in quarantine for too long")


def beat_settings(mesh: MeshSettings) -> BeatSettings:
    return BeatSettings(interval_s=mesh.beat_s, lost_after_s=mesh.lost_after_s)


async def send_all_elsewhere(ground: Ground, parts: Parts) -> None:
    """A worker that cannot compute any more says so before it ends: what it serves goes on elsewhere."""
    ground.term.turn(WorkerState.LEAVING)
    parts.decode_desk.send_elsewhere("its engine has ended")
    await parts.outbox.flush()


def worker_card(ground: Ground, hardware: str) -> WorkerCard:
    settings, term = ground.settings, ground.term
    return WorkerCard(
        worker=term.worker,
        model=ground.card.name,
        role=term.role,
        epoch=term.epoch,
        incarnation=term.incarnation,
        state=term.state,
        kv_class=ground.card.kv_class,
        num_blocks=ground.memory.num_blocks,
        max_sequences=settings.max_sequences,
        host=settings.mesh.host_name,
        zone=settings.mesh.zone,
        hardware=hardware,
        strategy=ground.memory.strategy,
    )


async def _subscribe(bus: Bus, ns: str, worker: str, parts: Parts) -> list[Subscription]:
    generate, control = subjects.worker_generate(ns, worker), subjects.worker_control(ns, worker)
    return await bus.subscribe_all(
        [Wish(generate, parts.door.on_generate, perishable=True), Wish(control, parts.door.on_control)]
    )


def _take_step(parts: Parts, beats: Beats, events: list[SequenceProgress]) -> None:
    parts.take_step(events)
    beats.hurry()


def _spread(ground: Ground, parts: Parts, beats: Beats) -> None:
    """Those of this process know at once, lest a worker be its own neighbour."""
    ground.neighbours.view.learn(parts.reporter.report())
    beats.hurry()


async def _leave(ground: Ground, parts: Parts, registration: Registration, beats: Beats) -> None:
    ground.term.turn(WorkerState.LEAVING)
    parts.role_switch.leave()
    beats.hurry()
    parts.prefill_desk.wake()
    until_s = time.monotonic() + LINGER_S
    try:
        async with asyncio.timeout(ground.settings.mesh.drain_limit_s):
            await _withdraw(registration)
            await parts.hand_over.run(DrainMode.MOVE, ground.settings.mesh.drain_limit_s)
            await parts.prefill_desk.wait_idle()
    except TimeoutError:
        log.info("what is left goes elsewhere", extra={"num_left": len(parts.decode_desk.served)})
    parts.hand_over.note_left("sent_on")
    parts.decode_desk.send_elsewhere("it is leaving")
    parts.prefill_desk.give_back("it is leaving")
    await parts.outbox.flush()
    with suppress(TimeoutError):
        async with asyncio.timeout(GIVE_BACK_S):
            await parts.prefill_desk.wait_idle()
    await asyncio.sleep(until_s - time.monotonic())


async def _withdraw(registration: Registration) -> None:
    try:
        await registration.withdraw()
    except (Disconnected, DeadlineExceeded) as error:
        log.warning("not withdrawn; the lease will end it", extra={"reason": str(error)})
