"""The life of a process of simulated workers: what they share is opened once, then they begin by and by."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from proto import keys, subjects
from proto.cards import ModelCard
from proto.errors import InvalidRequest, InvalidSetting
from proto.names import check_id
from proto.reports import BEATS, AnyBeat
from proto.roles import Role
from services.admin import Health, open_admin
from services.bus import open_bus
from services.directory import open_directory
from services.liveness import Liveness, watch_beats
from services.logs import set_up_logs
from services.metrics import Metrics, WorkerMetrics
from services.models.folder import ModelFolder, read_text_folder, resolve_model
from services.process import stop_collecting_what_stands
from services.tasks import open_tasks
from services.tracing import open_tracing
from services.work_queue import open_work_queue
from workers.admittance import Admittance
from workers.client_watch import ClientWatch
from workers.decode_desk import DecodeDesk
from workers.engine.engine_load import EngineLoad
from workers.guards import check_names_free, guard_model, guard_names
from workers.neighbours import Neighbours
from workers.registration import publish_model
from workers.role_pages import add_role_pages
from workers.roles.order_watch import OrderWatch
from workers.roles.prefill_view import PrefillView
from workers.roles.role_switch import RoleSwitch
from workers.roles.term import Term
from workers.runners import kv_class, simulated_digest
from workers.serving import beat_settings
from workers.simulated.instant_runner import InstantRunner
from workers.simulated.pacer import Lateness
from workers.simulated.settings import SimulateSettings
from workers.simulated.wire import Wire
from workers.simulated.worker import Shared, SimulatedWorker
from workers.transfer.agents import Agents

NUM_AT_ONCE = 25  # workers that begin together: more would make the loop late

log = logging.getLogger(__name__)


async def run_simulation(settings: SimulateSettings, shutdown: asyncio.Event) -> None:
    """Serve until `shutdown` is set, then all leave.

    Raises:
        KvmeshError: it cannot start.
    """
    set_up_logs(settings.logs, "worker", settings.name)
    async with open_simulation(settings):
        stop_collecting_what_stands()
        await shutdown.wait()


@asynccontextmanager
async def open_simulation(settings: SimulateSettings) -> AsyncIterator["Crowd"]:
    """All workers are registered for the time of the body; then they leave. The process says that it is ready
    once every router would choose each of them."""
    name = check_id(settings.name, "simulate.name")
    metrics, health = Metrics("worker", name), Health()
    metrics.watch_process()
    folder = await asyncio.to_thread(find_folder, settings)
    _check_tokens(settings, folder)
    async with (
        open_admin(settings.admin, health, metrics) as admin,
        open_tracing(settings.tracing, "worker", name) as tracing,
        open_bus(settings.bus, name) as bus,
        open_directory(settings.directory) as directory,
        watch_beats(bus, settings.mesh.ns, beat_settings(settings.mesh), BEATS.decode) as liveness,
    ):
        ns = settings.mesh.ns
        each = settings.each
        runner = InstantRunner(each.simulated, each.num_blocks, each.block_size)
        kv = kv_class(runner, simulated_digest(folder))
        card = await publish_model(each, name, directory, folder, kv)
        queue = await open_work_queue(
            bus, settings.jobs, subjects.prefill_stream(ns), subjects.prefill_any(ns)
        )
        wire = Wire(settings.link_gbit_per_s, settings.link_latency_s)
        shared = Shared(
            settings=each,
            folder=folder,
            card=card,
            bus=bus,
            directory=directory,
            queue=queue,
            orders=OrderWatch(),
            neighbours=_neighbours(card, wire),
            wire=wire,
            lateness=Lateness(),
            metrics=WorkerMetrics(metrics),
            tracing=tracing,
        )
        crowd = Crowd(shared, liveness)
        crowd.observe(metrics)
        add_role_pages(admin, "/role/{worker}", crowd.find_switch)
        async with crowd.living(settings), open_tasks() as tasks:
            admittance = Admittance(bus, ns, crowd.terms, liveness)
            health.require_to_be_ready("routers", lambda: admittance.obstacle)
            health.note_started()
            asking = tasks.create_task(admittance.run(), name="admittance")
            yield crowd
            asking.cancel()


def _neighbours(card: ModelCard, wire: Wire) -> Neighbours:
    """Who prefills for the workers of this process: those of it alone, since KV can come from no other."""
    agents = Agents()

    def can_move(worker: str, incarnation: str) -> bool:
        agent = agents.card(worker, incarnation)
        return agent is not None and wire.reaches(agent)

    return Neighbours(PrefillView(card.name, can_move), agents)


class Crowd:
    """All workers of a process, by name. Belongs to one event loop."""

    def __init__(self, shared: Shared, liveness: Liveness[AnyBeat]) -> None:
        self.workers: dict[str, SimulatedWorker] = {}
        self.shared = shared
        self._liveness = liveness
        self._terms: dict[str, Term] = {}
        self._desks: list[DecodeDesk] = []

    @property
    def terms(self) -> list[Term]:
        return list(self._terms.values())

    def find_switch(self, worker: str) -> RoleSwitch:
        """
        Raises:
            InvalidRequest: there is no such worker in this process.
        """
        found = self.workers.get(worker)
        if found is None or found.parts is None:
            raise InvalidRequest(field="worker", reason=f"there is no worker {worker!r} in this process")
        return found.parts.role_switch

    @asynccontextmanager
    async def living(self, settings: SimulateSettings) -> AsyncIterator[None]:
        """All are ready for the time of the body; at its end all leave."""
        began_s = time.monotonic()
        self.shared.neighbours.listen(self._liveness)
        async with open_tasks() as tasks:
            companions = [tasks.create_task(life, name=name) for name, life in self._companions().items()]
            async with asyncio.TaskGroup() as lives:
                with _gc_paused():
                    await self._begin(_names(settings), lives)
                took_s = time.monotonic() - began_s
                log.info("%d workers are ready", len(self.workers), extra={"took_s": round(took_s, 2)})
                try:
                    yield
                finally:
                    for worker in self.workers.values():
                        worker.leave.set()
            for companion in companions:
                companion.cancel()

    async def _begin(self, names: list[tuple[str, Role]], lives: asyncio.TaskGroup) -> None:
        ns = self.shared.settings.mesh.ns
        for start in range(0, len(names), NUM_AT_ONCE):
            some = names[start : start + NUM_AT_ONCE]
            await check_names_free(self.shared.bus, ns, [name for name, _ in some])
            begun = [SimulatedWorker(self.shared, name, role) for name, role in some]
            for worker in begun:
                lives.create_task(worker.run(), name=worker.term.worker)
            for worker in begun:
                await worker.ready.wait()
                self._admit(worker)

    def _admit(self, worker: SimulatedWorker) -> None:
        assert worker.parts is not None
        name = worker.term.worker
        self.workers[name] = worker
        self._terms[name] = worker.term
        self._desks.append(worker.parts.decode_desk)

    def _companions(self) -> dict[str, Coroutine[None, None, None]]:
        """What goes on once for all, by name."""
        shared = self.shared
        bus, directory, mesh = shared.bus, shared.directory, shared.settings.mesh
        clients = ClientWatch(bus, mesh.ns, self._liveness, self._desks, mesh.lost_after_s / 2)
        return {
            "agents": shared.neighbours.agents.follow(directory, mesh.ns),
            "orders": shared.orders.follow(directory, keys.orders(mesh.ns)),
            "clients": clients.run(),
            "guard of the names": guard_names(self._terms, self._liveness),
            "guard of the model": guard_model(directory, mesh.ns, shared.card),
        }

    def observe(self, metrics: Metrics) -> None:
        """Gauges of all workers together, read when they are scraped."""
        lateness = self.shared.lateness
        self.shared.metrics.observe_queues(
            before_prefill=lambda: self._sum(lambda load: load.num_waiting),
            before_decode=lambda: self._sum(lambda load: load.num_awaiting),
            running=lambda: self._sum(lambda load: load.num_running),
        )
        metrics.observe("simulated_workers", "workers in this process", lambda: len(self.workers))
        metrics.observe("engine_steps", "steps computed since the start", lambda: lateness.num_steps)
        metrics.observe(
            "simulated_late_seconds",
            "seconds that steps ended too late, in all",
            lambda: lateness.late_s,
        )

    def _sum(self, fact: Callable[[EngineLoad], float]) -> float:
        grounds = [worker.ground for worker in self.workers.values()]
        return sum(fact(ground.engine.load()) for ground in grounds if ground is not None)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """No garbage collection in the body, which makes what lives long: each look at all of it takes longer."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def find_folder(settings: SimulateSettings) -> ModelFolder:
    """The model's folder, of which only the text and the limits matter.

    Raises:
        InvalidSetting: there is no such model, or nothing says how long a sequence may be.
    """
    path = Path(settings.model).expanduser()
    if path.is_dir() and not (path / "config.json").exists() and settings.context_tokens:
        return read_text_folder(path.resolve(), path.resolve().name, settings.context_tokens)
    folder = resolve_model(settings.model)
    if not settings.context_tokens:
        return folder
    return msgspec.structs.replace(folder, context_tokens=settings.context_tokens)


def _check_tokens(settings: SimulateSettings, folder: ModelFolder) -> None:
    end = settings.simulated.first_token + settings.simulated.num_tokens
    if end > folder.vocab_size:
        reason = f"tokens up to {end - 1} are sampled, and {folder.name} has {folder.vocab_size}"
        raise InvalidSetting(setting="simulated.num_tokens", reason=reason)


def _names(settings: SimulateSettings) -> list[tuple[str, Role]]:
    decode = [(f"{settings.name}-{number}", Role.DECODE) for number in range(settings.workers)]
    prefill = [
        (f"{settings.name}-prefill-{number}", Role.PREFILL) for number in range(settings.prefill_workers)
    ]
    return [*prefill, *decode]
