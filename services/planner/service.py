"""The planner as a process: what it opens, in which order, and how it ends.

```
 admin, bus, directory, beats ─► orders, presences followed ─► registered: in line ─► looks, again and again
                                                                                           │
 closed ◄─ beat "leaving" ◄─ unregistered: the next one leads ◄────────────────────────────┘
```
It only hears beats and reads the directory. A move on its way when it ends is followed by the next one.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from proto import keys
from proto.cards import Presence
from proto.codec import decode
from proto.errors import InvalidRequest
from proto.names import new_id
from proto.reports import BEATS, AnyBeat, Beat
from proto.roles import Order
from services.admin import Health, open_admin
from services.bus import Bus, open_bus
from services.directory import Change, Changed, Directory, Entry, Listed, open_directory
from services.liveness import Liveness, watch_beats
from services.logs import set_up_logs
from services.metrics import Metrics
from services.planner.election import Election
from services.planner.metrics import PlannerMetrics
from services.planner.model_planner import ModelPlanner
from services.planner.observation import Observation
from services.planner.picture import Picture
from services.planner.planning import Planning
from services.planner.settings import PlannerSettings
from services.presence import beating, registered
from services.tasks import open_tasks

log = logging.getLogger(__name__)


async def run_planner(settings: PlannerSettings, shutdown: asyncio.Event) -> None:
    """A planner's life: until `shutdown` is set."""
    planner = new_id()
    set_up_logs(settings.logs, "planner", planner)
    await serve_planner(settings, planner, shutdown)


async def serve_planner(settings: PlannerSettings, planner: str, shutdown: asyncio.Event) -> None:
    """As `run_planner`, in a process whose logs are somebody else's. `planner` names this incarnation.

    Raises:
        KvmeshError: bus, directory or admin port cannot be had.
    """
    metrics, health = Metrics("planner", planner), Health()
    metrics.watch_process()
    async with (
        open_admin(settings.admin, health, metrics) as admin,
        open_bus(settings.bus, f"planner-{planner}") as bus,
        open_directory(settings.directory) as directory,
        watch_beats(bus, settings.mesh.ns, settings.beats, BEATS.decode) as liveness,
    ):
        presence = Presence(planner, planner, settings.mesh.host_name, admin.url)
        service = PlannerService(settings, presence, bus, directory, liveness, metrics, health)
        await service.serve(shutdown)


class PlannerService:
    """The parts of a planner, and the order in which they live. Belongs to one event loop."""

    def __init__(
        self,
        settings: PlannerSettings,
        presence: Presence,
        bus: Bus,
        directory: Directory,
        liveness: Liveness[AnyBeat],
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._settings = settings
        self._presence = presence
        self._bus = bus
        self._directory = directory
        self._liveness = liveness
        self._health = health
        self._metrics = PlannerMetrics(metrics)
        self._observation = Observation(settings.observation_rules)
        self._election = Election(settings.mesh.ns, presence.process)
        self._models: dict[str, ModelPlanner] = {}
        self._orders: dict[str, Order] = {}
        self._has_orders = False

    async def serve(self, shutdown: asyncio.Event) -> None:
        """Until `shutdown` is set."""
        self._show()
        async with self._following(), self._beating(), self._in_line():
            while not shutdown.is_set():
                await self.look(time.monotonic())
                await self._wait(shutdown)

    async def _wait(self, shutdown: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._settings.look_s / self._settings.speed_up):
                await shutdown.wait()
        except TimeoutError:
            return

    def _show(self) -> None:
        """Tells metrics and health where to look."""
        self._metrics.leads.set_function(lambda: float(self._election.leads))
        self._health.require_to_be_ready("bus", lambda: "" if self._bus.is_connected else "not connected")
        self._health.require_to_be_ready("orders", lambda: "" if self._has_orders else "not listed yet")
        self._health.note_started()

    async def look(self, now_s: float) -> None:
        """Sees what is, and where it leads, has done what should be."""
        unseen = [order for model in self._models.values() if (order := model.unseen()) is not None]
        self._observation.note_orders(self._orders | {order.worker: order for order in unseen})
        pictures = self._observation.look(now_s)
        for name, picture in pictures.items():
            await self._look_at(name, picture, now_s)
        self._models = {name: model for name, model in self._models.items() if name in pictures}

    async def _look_at(self, name: str, picture: Picture, now_s: float) -> None:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = self._new_model(name)
        model.show(picture)
        if not self._has_orders:
            return
        if self._settings.dry_run:
            model.think(picture, now_s)
        elif not self._election.leads:
            model.stand_by()
        elif model.follow(self._orders, self._observation.reports(), picture, now_s):
            self._observation.forget_latencies(name)  # the next look sees the new split
        else:
            await model.act(picture, lambda: self._election.lead(self._directory), now_s)

    def _new_model(self, name: str) -> ModelPlanner:
        settings = self._settings
        planning = Planning(settings.plan_rules)
        return ModelPlanner(
            name, settings.mesh.ns, planning, self._directory, self._metrics, settings.let_go_s
        )

    @asynccontextmanager
    async def _following(self) -> AsyncIterator[None]:
        """Hears the mesh for the time of the body."""
        ns = self._settings.mesh.ns
        self._liveness.on_beat(lambda process, beat: self._observation.hear(process, beat, time.monotonic()))
        self._liveness.on_change(self._hear_liveness)
        async with open_tasks() as tasks:
            companions = [
                tasks.create_task(self._follow(keys.orders(ns), self._hear_orders), name="orders"),
                tasks.create_task(self._follow(keys.planners(ns), self._election.apply), name="election"),
            ]
            try:
                yield
            finally:
                for companion in companions:
                    companion.cancel()

    async def _follow(self, prefix: str, hear: Callable[[Change], None]) -> None:
        async with self._directory.watch(prefix) as changes:
            async for change in changes:
                hear(change)

    def _hear_liveness(self, process: str, is_alive: bool) -> None:
        if not is_alive:
            self._observation.lose(process)

    def _hear_orders(self, change: Change) -> None:
        match change:
            case Listed(entries=entries):
                self._orders = {}
                self._has_orders = True
                for entry in entries:
                    self._hear_order(entry)
            case Changed(entry=entry):
                self._hear_order(entry)
            case _:
                self._orders.pop(keys.last_part(change.key), None)

    def _hear_order(self, entry: Entry) -> None:
        try:
            self._orders[keys.last_part(entry.key)] = decode(entry.value, Order)
        except InvalidRequest as error:
            log.warning("an unreadable order at %s: %s", entry.key, error)

    def _beating(self) -> AbstractAsyncContextManager[None]:
        ns, process = self._settings.mesh.ns, self._presence.process
        return beating(self._bus, ns, process, self._beat, self._settings.beats)

    def _beat(self, is_leaving: bool) -> Beat:
        return Beat(self._presence.process, "planner", self._presence.incarnation, is_leaving)

    def _in_line(self) -> AbstractAsyncContextManager[None]:
        """In line to lead for the time of the body. A dry run leads nobody, and so never keeps another from
        leading."""
        if self._settings.dry_run:
            return nullcontext()
        key = keys.planner(self._settings.mesh.ns, self._presence.process)
        return registered(self._directory, key, self._presence)
