"""The router as a process: what it opens, in which order, and how it ends.

```
 admin, bus, directory, beats ─► hears cards, events, choices ─► index warm ─► takes requests ─► registered
                                                                                                     │
 closed ◄─ beat "leaving" ◄─ queue drained ◄─ requests in hand answered ◄─ takes no more ◄─ unregistered
```
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from proto import keys, subjects
from proto.cards import Presence
from proto.names import new_id
from proto.reports import BEATS, AnyBeat, Beat
from router.chooser import Chooser
from router.event_feed import EventFeed
from router.forwarding import Forwarder
from router.hearing import Hearing
from router.hit_metrics import HitMetrics
from router.intake import Intake
from router.kv_index import KvIndex
from router.lives import Lives
from router.predictions import Predictions
from router.settings import RouterSettings
from router.slots import Slots
from router.snapshots import Snapshots
from router.waitlist import Waitlist
from router.workers_view import WorkersView
from services.admin import Health, open_admin
from services.bus import Bus, open_bus
from services.directory import Change, Directory, open_directory
from services.liveness import Liveness, watch_beats
from services.logs import set_up_logs
from services.metrics import Metrics, RouterMetrics
from services.presence import beating, registered
from services.tasks import open_tasks
from services.tracing import Tracing, open_tracing

log = logging.getLogger(__name__)

QUEUE_GROUP = "routers"


async def run_router(settings: RouterSettings, shutdown: asyncio.Event) -> None:
    """A router's life: until `shutdown` is set and what was in hand is answered."""
    router = new_id()
    set_up_logs(settings.logs, "router", router)
    await serve_router(settings, router, shutdown)


async def serve_router(settings: RouterSettings, router: str, shutdown: asyncio.Event) -> None:
    """As `run_router`, in a process whose logs are somebody else's. `router` names this incarnation.

    Raises:
        KvmeshError: bus, directory or admin port cannot be had.
    """
    metrics, health = Metrics("router", router), Health()
    metrics.watch_process()
    async with (
        open_admin(settings.admin, health, metrics) as admin,
        open_tracing(settings.tracing, "router", router) as tracing,
        open_bus(settings.bus, f"router-{router}") as bus,
        open_directory(settings.directory) as directory,
        watch_beats(bus, settings.mesh.ns, settings.beats, BEATS.decode) as liveness,
    ):
        presence = Presence(router, router, settings.mesh.host_name, admin.url)
        service = RouterService(settings, presence, bus, directory, liveness, tracing, metrics, health)
        await service.serve(shutdown)


class RouterService:
    """The parts of a router, and the order in which they live. Belongs to one event loop."""

    def __init__(
        self,
        settings: RouterSettings,
        presence: Presence,
        bus: Bus,
        directory: Directory,
        liveness: Liveness[AnyBeat],
        tracing: Tracing,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._settings = settings
        self._presence = presence
        self._bus = bus
        self._directory = directory
        self._liveness = liveness
        self._tracing = tracing
        self._health = health
        self._metrics = RouterMetrics(metrics)
        self._is_serving = False
        router, ns = presence.process, settings.mesh.ns
        lives, slots = Lives(), Slots()
        self._index = KvIndex(slots)
        self._view = WorkersView(lives, slots, liveness.is_alive)
        self._feed = EventFeed(self._index, settings.feed_rules)
        predictions = Predictions(settings.promise_ttl_s, settings.promise_limit, slots)
        hits = HitMetrics(metrics, self._metrics)
        self._hearing = Hearing(router, slots, lives, self._view, self._index, self._feed, predictions, hits)
        self._snapshots = Snapshots(bus, ns, self._feed, settings.snapshot_rules, self._metrics)
        chooser = Chooser(settings, slots, self._view, self._index, predictions, random.Random())
        self._forwarder = Forwarder(router, settings, bus, chooser, self._hearing, self._metrics)
        self._waitlist = Waitlist(router, settings, bus, chooser, self._forwarder, self._metrics)
        self._predictions = predictions

    async def serve(self, shutdown: asyncio.Event) -> None:
        """Until `shutdown` is set and what was in hand is answered."""
        self._show()
        async with self._listening():
            if await self._wait_warm(shutdown):
                await self._take_requests(shutdown)

    def _show(self) -> None:
        """Tells metrics and health where to look."""
        self._metrics.queue_length.set_function(lambda: len(self._waitlist))
        self._metrics.index_blocks.set_function(lambda: self._index.num_blocks)
        self._metrics.index_bytes.set_function(lambda: self._index.num_bytes)
        self._metrics.workers.set_function(lambda: self._view.num_ready)
        self._metrics.promised_sequences.set_function(lambda: self._predictions.load().num_sequences)
        self._metrics.promised_tokens.set_function(lambda: self._predictions.load().new_tokens)
        self._health.require_to_be_ready("bus", lambda: "" if self._bus.is_connected else "not connected")
        self._health.require_to_be_ready("requests", lambda: "" if self._is_serving else "takes none now")
        self._health.note_started()

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Hears the mesh, keeps the index true and the queue moving, for the time of the body."""
        ns, hearing = self._settings.mesh.ns, self._hearing
        hearing.listeners += [self._snapshots.wake, self._waitlist.wake]
        self._snapshots.listeners.append(hearing.tell)
        events = await self._bus.subscribe(subjects.kv_any(ns), hearing.hear_events)
        choices = await self._bus.subscribe(subjects.choice_any(ns), hearing.hear_choice, perishable=True)
        # Reports count from here on: what they do not include yet is heard as events and choices.
        self._liveness.on_beat(hearing.hear_beat)
        self._liveness.on_change(hearing.hear_liveness)
        async with open_tasks() as tasks:
            companions = [
                tasks.create_task(self._follow(keys.models(ns), hearing.hear_models), name="models"),
                tasks.create_task(self._follow(keys.workers(ns), hearing.hear_workers), name="workers"),
                tasks.create_task(self._snapshots.run(), name="snapshots"),
                tasks.create_task(self._waitlist.run(), name="waitlist"),
            ]
            try:
                yield
            finally:
                for companion in companions:
                    companion.cancel()
                await choices.close()
                await events.close()

    async def _follow(self, prefix: str, hear: Callable[[Change], None]) -> None:
        async with self._directory.watch(prefix) as changes:
            async for change in changes:
                hear(change)

    async def _wait_warm(self, shutdown: asyncio.Event) -> bool:
        """Whether the process shall serve: it has heard who is there, and what they hold."""
        async with open_tasks() as tasks:
            warming = tasks.create_task(self._warm(), name="warming")
            ending = tasks.create_task(shutdown.wait(), name="ending")
            await asyncio.wait((warming, ending), return_when=asyncio.FIRST_COMPLETED)
            for task in (warming, ending):
                task.cancel()
        return not shutdown.is_set()

    async def _warm(self) -> None:
        """Returns once the directory was read, and every cache is known or was waited for long enough."""
        news = asyncio.Event()
        self._hearing.listeners.append(news.set)
        try:
            await _until(lambda: self._hearing.has_listings, news)
            async with asyncio.timeout(self._settings.warm_limit_s):
                await _until(lambda: all(map(self._feed.is_whole, self._view.listed)), news)
        except TimeoutError:
            cold = [worker for worker in self._view.listed if not self._feed.is_whole(worker)]
            log.warning("serving without the caches of some workers", extra={"workers": ", ".join(cold)})
        finally:
            self._hearing.listeners.remove(news.set)

    async def _take_requests(self, shutdown: asyncio.Event) -> None:
        """Registered after subscribed, unregistered before unsubscribed; then answers what is in hand."""
        ns, router = self._settings.mesh.ns, self._presence.process
        async with self._beating(), open_tasks() as in_hand:
            intake = self._intake(in_hand)
            control = await self._bus.subscribe(subjects.router_control(ns, router), intake.take_control)
            requests = await self._bus.subscribe(
                subjects.route_any(ns), intake.take_route, queue=QUEUE_GROUP, perishable=True
            )
            async with self._registered():
                await shutdown.wait()
            await requests.close()
            await self._waitlist.drain(self._settings.mesh.drain_limit_s)
            await control.close()

    def _intake(self, tasks: asyncio.TaskGroup) -> Intake:
        return Intake(
            self._settings,
            self._directory,
            self._view,
            self._forwarder,
            self._waitlist,
            self._metrics,
            self._tracing,
            tasks,
        )

    def _beating(self) -> AbstractAsyncContextManager[None]:
        ns, process = self._settings.mesh.ns, self._presence.process
        return beating(self._bus, ns, process, self._beat, self._settings.beats)

    def _beat(self, is_leaving: bool) -> Beat:
        return Beat(self._presence.process, "router", self._presence.incarnation, is_leaving)

    @asynccontextmanager
    async def _registered(self) -> AsyncIterator[None]:
        key = keys.router(self._settings.mesh.ns, self._presence.process)
        async with registered(self._directory, key, self._presence):
            self._is_serving = True
            yield
            self._is_serving = False


async def _until(is_so: Callable[[], bool], news: asyncio.Event) -> None:
    while not is_so():
        news.clear()
        await news.wait()
