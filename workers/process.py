"""A worker's life: load, open, subscribe, register; and all of it backwards at the end."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from proto import subjects
from proto.cards import ModelCard, RankAgent, WorkerCard
from proto.errors import DeadlineExceeded, Disconnected, InternalFault
from proto.jobs import Landing
from proto.names import check_id, new_id
from proto.reports import BEATS, AnyBeat
from proto.roles import WorkerState
from services.admin import Health, open_admin
from services.bus import Bus, open_bus
from services.directory import Directory, open_directory
from services.jetstream import check_available
from services.liveness import Beats, BeatSettings, Liveness, send_beats, watch_beats
from services.logs import set_up_logs
from services.metrics import Metrics, WorkerMetrics
from services.models.folder import ModelFolder, resolve_model
from services.objects import open_objects
from services.tasks import open_tasks
from services.tracing import Tracing, open_tracing
from services.work_queue import open_work_queue
from workers.admittance import Admittance
from workers.assembly import Ground, Parts, assemble, observe
from workers.bridge import EngineBridge
from workers.client_watch import ClientWatch
from workers.engine.engine import Engine
from workers.engine.engine_thread import EngineThread
from workers.engine.runner import Runner
from workers.engine.step import SequenceProgress
from workers.guards import check_name_free, guard_model, guard_name, guard_threads
from workers.registration import Registration, publish_model
from workers.roles.term import Term
from workers.runners import engine_settings, kv_class, load_runner, pool_layout
from workers.settings import WorkerSettings
from workers.transfer.nixl_transport import NixlTransport
from workers.transfer.peers import Peers
from workers.transfer.transfer_settings import apply_to_environment, backend_parameters
from workers.transfer.transfer_thread import Transfer, TransferThread

GIVE_BACK_S = 1.0
LINGER_S = 0.5
"""How long a leaver says "go elsewhere" at least: routers offer it work until they hear of its leaving."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is ready before anything is open to others."""

    folder: ModelFolder
    runner: Runner
    weights_digest: str


@dataclass(frozen=True, slots=True)
class Outside:
    """The process around the worker."""

    settings: WorkerSettings
    term: Term
    bus: Bus
    directory: Directory
    metrics: Metrics
    health: Health
    shutdown: asyncio.Event
    tracing: Tracing

    @property
    def ns(self) -> str:
        return self.settings.mesh.ns


async def run_worker(settings: WorkerSettings, shutdown: asyncio.Event) -> None:
    """Serve until `shutdown` is set, then leave: no new work, a drain, and what is left goes elsewhere.

    Raises:
        KvmeshError: it cannot start, or its engine has died.
    """
    name = check_id(settings.name or f"worker-{new_id()[:8]}", "worker.name")
    set_up_logs(settings.logs, "worker", name)
    apply_to_environment(settings.transfer)
    metrics, health = Metrics("worker", name), Health()
    metrics.watch_process()
    async with (
        open_admin(settings.admin, health, metrics),
        open_bus(settings.bus, name) as bus,
        open_directory(settings.directory) as directory,
        open_tracing(settings.tracing, "worker", name) as tracing,
    ):
        term = Term(name, new_id(), settings.role)
        outside = Outside(settings, term, bus, directory, metrics, health, shutdown, tracing)
        await check_available(bus)  # before the weights, which may take minutes
        loaded = await asyncio.to_thread(_load, settings)
        if shutdown.is_set():
            return
        async with _working(outside, loaded) as (ground, parts, rank):
            await _serve(outside, ground, parts, rank)


def _load(settings: WorkerSettings) -> Loaded:
    folder = resolve_model(settings.model)
    runner, digest = load_runner(settings, folder)
    log.info(
        "loaded %s", folder.name, extra={"num_blocks": runner.num_blocks, "pool_bytes": runner.pool_bytes}
    )
    return Loaded(folder, runner, digest)


@asynccontextmanager
async def _working(outside: Outside, loaded: Loaded) -> AsyncIterator[tuple[Ground, Parts, RankAgent]]:
    """The engine and the transfers run; nothing is open to others yet."""
    settings, term = outside.settings, outside.term
    loop = asyncio.get_running_loop()
    card = await _publish_model(outside, loaded)
    bridge = EngineBridge()
    engine = Engine(loaded.runner, engine_settings(settings, loaded.runner, loaded.folder), bridge)
    pool = pool_layout(loaded.runner)
    parameters = backend_parameters(settings.transfer)
    transport = NixlTransport(f"{term.worker}.{term.incarnation}", pool, parameters)

    def on_landing(landing: Landing) -> None:
        loop.call_soon_threadsafe(parts.lender.land, landing)

    worker_metrics = WorkerMetrics(outside.metrics)

    def on_moved(transfer: Transfer, took_s: float) -> None:
        is_push = transfer.operation == "WRITE"
        moved = worker_metrics.bytes_pushed if is_push else worker_metrics.bytes_pulled
        moved.inc(transfer.num_bytes)
        worker_metrics.transfer_s.observe(took_s)

    transfers = TransferThread(transport, on_landing, on_moved)
    queue = await open_work_queue(
        outside.bus, settings.jobs, subjects.prefill_stream(outside.ns), subjects.prefill_any(outside.ns)
    )
    async with transfers.running() as rank:
        peers = Peers(rank, term.worker, transfers)
        ground = Ground(
            settings,
            term,
            outside.bus,
            queue,
            engine,
            bridge,
            transfers,
            peers,
            pool,
            card,
            worker_metrics,
            outside.tracing,
        )
        parts = assemble(ground, outside.shutdown.set)
        observe(outside.metrics, ground, parts)
        outside.health.require_to_live("engine", lambda: str(engine.fault.values) if engine.fault else "")
        outside.health.require_to_live("transfers", lambda: "" if transfers.is_alive else "they have ended")
        with EngineThread(engine):
            yield ground, parts, rank


async def _publish_model(outside: Outside, loaded: Loaded) -> ModelCard:
    """Tokenizer files go over a connection of their own, so that nothing waits behind them."""
    settings = outside.settings
    async with open_bus(settings.bus, f"{outside.term.worker}-bulk") as bulk:
        objects = await open_objects(bulk, settings.objects, subjects.objects_bucket(outside.ns))
        kv = kv_class(loaded.runner, loaded.weights_digest)
        return await publish_model(outside.directory, objects, outside.ns, loaded.folder, kv)


def _leaving(shutdown: asyncio.Event) -> str:
    return "it is leaving" if shutdown.is_set() else ""


async def _serve(outside: Outside, ground: Ground, parts: Parts, rank: RankAgent) -> None:
    """Registered after subscribed; unregistered before unsubscribed."""
    ns, term, bus = outside.ns, outside.term, outside.bus
    mesh = outside.settings.mesh
    beating = BeatSettings(interval_s=mesh.beat_s, lost_after_s=mesh.lost_after_s)
    registration = Registration(outside.directory, ns, _worker_card(outside, ground), rank)
    await check_name_free(bus, ns, term.worker)
    async with (
        watch_beats(bus, ns, beating, BEATS.decode) as liveness,
        open_tasks() as tasks,
    ):
        liveness.on_beat(parts.hear)
        liveness.on_change(parts.note_life)
        running = [
            tasks.create_task(life, name=name)
            for name, life in _lives(outside, ground, parts, liveness).items()
        ]
        subscriptions = [
            await bus.subscribe(
                subjects.worker_generate(ns, term.worker), parts.door.on_generate, perishable=True
            ),
            await bus.subscribe(subjects.worker_control(ns, term.worker), parts.door.on_control),
        ]
        async with send_beats(bus, subjects.beat(ns, term.worker), parts.reporter.payload, beating) as beats:
            ground.bridge.connect(lambda events: _take_step(parts, beats, events))
            parts.prefill_desk.on_change(beats.hurry)
            parts.publisher.on_change(beats.hurry)
            await registration.publish_agent()
            await registration.publish(term)
            outside.health.require_to_be_ready("shutdown", lambda: _leaving(outside.shutdown))
            admittance = Admittance(bus, ns, term, liveness)
            outside.health.require_to_be_ready("routers", lambda: admittance.obstacle)
            running.append(tasks.create_task(admittance.run(), name="admittance"))
            outside.health.note_started()
            log.info("ready as %s", term.role, extra={"model": ground.card.name})
            await outside.shutdown.wait()
            await _leave(outside, parts, registration, beats)
        for subscription in subscriptions:
            await subscription.close()
        for task in running:
            task.cancel()
    if parts.patrol.is_overdue:
        raise InternalFault(reason="blocks were in quarantine for too long")


def _take_step(parts: Parts, beats: Beats, events: list[SequenceProgress]) -> None:
    parts.take_step(events)
    beats.hurry()


def _lives(
    outside: Outside, ground: Ground, parts: Parts, liveness: Liveness[AnyBeat]
) -> dict[str, Coroutine[None, None, None]]:
    """All that goes on while a worker serves, by name."""
    ns, bus = outside.ns, outside.bus
    patience_s = outside.settings.mesh.lost_after_s / 2
    clients = ClientWatch(bus, ns, liveness, parts.outbox, parts.decode_desk, patience_s)
    return {
        "outbox": parts.outbox.run(),
        "KV events": parts.publisher.run(),
        "patrol": parts.patrol.run(),
        "decode desk": parts.decode_desk.run(),
        "prefill desk": parts.prefill_desk.run(),
        "door": parts.door.run(),
        "peers": ground.peers.follow(outside.directory, ns),
        "clients": clients.run(),
        "guard of threads": _guard_threads(outside, ground, parts),
        "guard of the name": guard_name(outside.term, liveness),
        "guard of the model": guard_model(outside.directory, ns, ground.card),
    }


async def _guard_threads(outside: Outside, ground: Ground, parts: Parts) -> None:
    """A worker that cannot compute any more says so before it ends: what it serves goes on elsewhere."""
    try:
        await guard_threads(ground.engine, ground.transfers)
    except InternalFault:
        outside.term.state = WorkerState.LEAVING
        parts.decode_desk.send_elsewhere()
        await parts.outbox.flush()
        raise


async def _leave(outside: Outside, parts: Parts, registration: Registration, beats: Beats) -> None:
    outside.term.state = WorkerState.LEAVING
    beats.hurry()
    parts.prefill_desk.wake()
    until_s = time.monotonic() + LINGER_S
    try:
        async with asyncio.timeout(outside.settings.mesh.drain_limit_s):
            await _withdraw(registration)
            await parts.decode_desk.served.wait_empty()
            await parts.prefill_desk.wait_idle()
    except TimeoutError:
        log.info("what is left goes elsewhere", extra={"num_left": len(parts.decode_desk.served)})
    parts.decode_desk.send_elsewhere()
    parts.prefill_desk.leave()
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


def _worker_card(outside: Outside, ground: Ground) -> WorkerCard:
    settings, term = outside.settings, outside.term
    return WorkerCard(
        worker=term.worker,
        model=ground.card.name,
        role=term.role,
        epoch=term.epoch,
        incarnation=term.incarnation,
        state=term.state,
        kv_class=ground.card.kv_class,
        num_blocks=ground.pool.num_blocks,
        max_sequences=settings.max_sequences,
        host=settings.mesh.host_name,
        zone=settings.mesh.zone,
        hardware=settings.device,
    )
