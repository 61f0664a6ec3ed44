"""A worker's life: load, open, subscribe, register; and all of it backwards at the end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from proto import keys, subjects
from proto.errors import KvmeshError
from proto.jobs import Landing
from proto.names import check_id, new_id
from proto.reports import BEATS, AnyBeat
from services.admin import Admin, Health, open_admin
from services.bus import Bus, open_bus
from services.directory import Directory, open_directory
from services.jetstream import check_available
from services.liveness import Liveness, watch_beats
from services.logs import set_up_logs
from services.metrics import Metrics, WorkerMetrics
from services.models.folder import ModelFolder, resolve_model
from services.tracing import Tracing, open_tracing
from services.work_queue import open_work_queue
from workers.acquaintance import Acquaintance
from workers.admittance import Admittance
from workers.assembly import Ground, Parts, assemble, observe
from workers.bridge import EngineBridge
from workers.client_watch import ClientWatch
from workers.engine.engine import Engine
from workers.engine.engine_thread import EngineThread
from workers.engine.runner import Runner
from workers.engine.simulated_model import SimulatedTime
from workers.engine.simulated_runner import SimulatedRunner
from workers.grammars import GrammarCompiler, open_grammar_compiler
from workers.guards import check_names_free, guard_model, guard_names, guard_threads
from workers.memory import MemoryTools, open_memory
from workers.neighbours import Neighbours
from workers.ranks.crew import Crew, open_crew, wait_broken
from workers.registration import Registration, publish_model
from workers.role_pages import add_role_pages
from workers.roles.order_watch import OrderWatch, adopt_order
from workers.roles.prefill_view import PrefillView
from workers.roles.term import Term
from workers.runners import drafting, engine_settings, grid_of, kv_class, load_runner
from workers.serving import beat_settings, send_all_elsewhere, serve, worker_card
from workers.settings import WorkerSettings
from workers.transfer.agents import Agents
from workers.transfer.moved import MovedCounter
from workers.transfer.peers import Peers
from workers.transfer.transfer_settings import apply_to_environment

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is ready before anything is open to others. `time` is there where it is simulated."""

    folder: ModelFolder
    runner: Runner
    weights_digest: str
    time: SimulatedTime | None


@dataclass(frozen=True, slots=True)
class Outside:
    """The process around the worker."""

    settings: WorkerSettings
    term: Term
    bus: Bus
    directory: Directory
    metrics: Metrics
    health: Health
    admin: Admin
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
    settings = msgspec.structs.replace(settings, name=name)
    grid = grid_of(settings)
    set_up_logs(settings.logs, "worker", name)
    apply_to_environment(settings.transfer)
    metrics, health = Metrics("worker", name), Health()
    metrics.watch_process()
    async with (
        open_admin(settings.admin, health, metrics) as admin,
        open_bus(settings.bus, name) as bus,
        open_directory(settings.directory) as directory,
        open_tracing(settings.tracing, "worker", name) as tracing,
    ):
        term = Term(name, new_id(), settings.role)
        await adopt_order(directory, settings.mesh.ns, term)
        outside = Outside(settings, term, bus, directory, metrics, health, admin, shutdown, tracing)
        await check_available(bus)  # before the weights, which may take minutes
        async with open_crew(grid, settings.rank_silent_s) as crew:
            loaded = await asyncio.to_thread(_load, settings, crew)
            if shutdown.is_set():
                return
            async with _working(outside, loaded, crew) as (ground, parts):
                await _serve(outside, ground, parts, crew)


def _load(settings: WorkerSettings, crew: Crew) -> Loaded:
    folder = resolve_model(settings.model)
    runner, digest = load_runner(settings, folder, crew)
    time = runner.time if isinstance(runner, SimulatedRunner) else None
    pool_bytes = sum(pool.pool_bytes for pool in runner.pools)
    log.info("loaded %s", folder.name, extra={"num_blocks": runner.num_blocks, "pool_bytes": pool_bytes})
    return Loaded(folder, runner, digest, time)


@asynccontextmanager
async def _working(outside: Outside, loaded: Loaded, crew: Crew) -> AsyncIterator[tuple[Ground, Parts]]:
    """The engine and the transfers run; nothing is open to others yet."""
    settings, term = outside.settings, outside.term
    loop = asyncio.get_running_loop()
    kv = kv_class(loaded.runner, loaded.weights_digest)
    card = await publish_model(settings, term.worker, outside.directory, loaded.folder, kv)
    bridge = EngineBridge()
    rules = engine_settings(settings, loaded.runner, loaded.folder)
    engine = Engine(loaded.runner, rules, bridge, drafting(settings))

    def on_landing(landing: Landing) -> None:
        loop.call_soon_threadsafe(parts.lender.land, landing)

    worker_metrics = WorkerMetrics(outside.metrics)
    moved = MovedCounter(worker_metrics)
    queue = await open_work_queue(
        outside.bus, settings.jobs, subjects.prefill_stream(outside.ns), subjects.prefill_any(outside.ns)
    )
    opening = open_memory(MemoryTools(settings.transfer, term, on_landing, moved), loaded.runner, crew)
    async with opening as memory, _grammars(loaded) as grammars:
        agents = Agents()
        peers = Peers(memory, term.worker, agents)
        neighbours = Neighbours(PrefillView(card.name, peers.can_move), agents)
        ground = Ground(
            settings=settings,
            term=term,
            orders=OrderWatch(),
            bus=outside.bus,
            directory=outside.directory,
            queue=queue,
            engine=engine,
            bridge=bridge,
            memory=memory,
            peers=peers,
            neighbours=neighbours,
            card=card,
            metrics=worker_metrics,
            tracing=outside.tracing,
            moved=moved,
            time=loaded.time,
            grammars=grammars,
        )
        parts = assemble(ground, outside.shutdown.set)
        observe(outside.metrics, ground, parts)
        add_role_pages(outside.admin, "/role", lambda _: parts.role_switch)
        outside.health.require_to_live("engine", lambda: str(engine.fault.values) if engine.fault else "")
        outside.health.require_to_live("transfers", lambda: memory.ailment)
        with EngineThread(engine, settings.niceness):
            yield ground, parts


@asynccontextmanager
async def _grammars(loaded: Loaded) -> AsyncIterator[GrammarCompiler | None]:
    """None where no token is computed that could be led."""
    if loaded.time is not None:
        yield None
        return
    async with open_grammar_compiler(loaded.folder) as grammars:
        yield grammars


def _leaving(shutdown: asyncio.Event) -> str:
    return "it is leaving" if shutdown.is_set() else ""


async def _serve(outside: Outside, ground: Ground, parts: Parts, crew: Crew) -> None:
    ns, term, bus = outside.ns, outside.term, outside.bus
    card = worker_card(ground, outside.settings.device)
    agent = ground.memory.card(term.worker, term.incarnation)
    registration = Registration(outside.directory.lease, ns, card, agent)
    await check_names_free(bus, ns, [term.worker])
    beats = beat_settings(outside.settings.mesh)
    async with watch_beats(bus, ns, beats, BEATS.decode) as liveness:
        ground.neighbours.on_lost(parts.lose)
        ground.neighbours.agents.on_new(ground.peers.judge)
        ground.neighbours.agents.on_forgotten(ground.peers.forget)
        ground.neighbours.listen(liveness)
        admittance = Admittance(bus, ns, [term], liveness)
        acquaintance = Acquaintance(ground.neighbours.agents, liveness, 2 * beats.interval_s)
        companions = {
            "admittance": admittance.run(),
            "acquaintance": acquaintance.run(),
            "guard of the ranks": _guard(wait_broken(crew), ground, parts),
            **_companions(outside, ground, parts, liveness),
        }

        def on_ready() -> None:
            outside.health.require_to_be_ready("routers", lambda: admittance.obstacle)
            outside.health.require_to_be_ready("others", lambda: acquaintance.obstacle)
            _show(outside, ground)

        await serve(ground, parts, registration, companions, outside.shutdown, on_ready)


def _show(outside: Outside, ground: Ground) -> None:
    """The worker is registered."""
    outside.health.require_to_be_ready("shutdown", lambda: _leaving(outside.shutdown))
    outside.health.note_started()
    log.info("ready as %s", ground.term.role, extra={"model": ground.card.name})


def _companions(
    outside: Outside, ground: Ground, parts: Parts, liveness: Liveness[AnyBeat]
) -> dict[str, Coroutine[None, None, None]]:
    """What goes on beside the worker's own parts, by name."""
    ns, term = outside.ns, outside.term
    patience_s = outside.settings.mesh.lost_after_s / 2
    clients = ClientWatch(outside.bus, ns, liveness, [parts.decode_desk], patience_s)
    return {
        "agents": ground.neighbours.agents.follow(outside.directory, ns),
        "orders": ground.orders.follow(outside.directory, keys.order(ns, term.worker)),
        "clients": clients.run(),
        "guard of threads": _guard(guard_threads(ground.engine, ground.memory), ground, parts),
        "guard of the name": guard_names({term.worker: term}, liveness),
        "guard of the model": guard_model(outside.directory, ns, ground.card),
    }


async def _guard(watch: Coroutine[None, None, None], ground: Ground, parts: Parts) -> None:
    """Before what `watch` raises ends the worker, what it serves goes elsewhere."""
    try:
        await watch
    except KvmeshError:
        await send_all_elsewhere(ground, parts)
        raise
