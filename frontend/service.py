"""The frontend as a process: what it opens, in which order, and how it ends.

```
 admin, bus, directory, beats ─► stream subject heard ─► models known ─► doors open ─► registered
                                                                                           │
 closed ◄─ beat "leaving" ◄─ doors closed ◄─ streams drained ◄─ admits no more ◄─ unregistered
```
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from frontend.generation import Generator
from frontend.http.app import OpenAiApi, make_app
from frontend.http.body_reader import BodyLimits
from frontend.http.direct_posts import DirectPosts
from frontend.kserve.app import add_kserve
from frontend.models import ModelDirectory
from frontend.prompt_reader import PromptReader
from frontend.requests.stream_hub import StreamHub, open_stream_hub
from frontend.settings import FrontendSettings
from frontend.side_door.door import SideDoor, open_side_door
from frontend.text.tokenize_pool import open_tokenize_pool
from frontend.traffic import Traffic
from proto import keys, subjects
from proto.cards import Presence
from proto.errors import DeadlineExceeded, GoElsewhere
from proto.names import new_id
from proto.reports import BEATS, AnyBeat, Beat
from services.admin import Health, open_admin
from services.bus import Bus, open_bus
from services.directory import Directory, open_directory
from services.grammars.trials import open_trials
from services.http_server import serve_http
from services.jetstream import check_available
from services.liveness import Liveness, watch_beats
from services.logs import set_up_logs
from services.metrics import FrontendMetrics, Metrics
from services.objects import Objects
from services.presence import beating, registered
from services.process import stop_collecting_what_stands
from services.tasks import open_tasks
from services.tracing import Tracing, open_tracing

log = logging.getLogger(__name__)

OnOpen = Callable[[str], None]

CUT_OFF_S = 0.5  # for the last events of streams that are cut off


async def run_frontend(settings: FrontendSettings, shutdown: asyncio.Event) -> None:
    """A frontend's life: until `shutdown` is set and its streams have ended, or were given their time."""
    frontend = new_id()
    set_up_logs(settings.logs, "frontend", frontend)

    def on_open(url: str) -> None:
        log.info("serving at %s", url)
        stop_collecting_what_stands()

    await serve_frontend(settings, frontend, shutdown, on_open)


async def serve_frontend(
    settings: FrontendSettings, frontend: str, shutdown: asyncio.Event, on_open: OnOpen
) -> None:
    """As `run_frontend`, in a process whose logs are somebody else's. `frontend` names this incarnation.

    `on_open` is called with the URL once requests are taken.

    Raises:
        KvmeshError: bus, directory or a port cannot be had.
    """
    metrics, health = Metrics("frontend", frontend), Health()
    metrics.watch_process()
    async with (
        open_admin(settings.admin, health, metrics),
        open_bus(settings.bus, f"frontend-{frontend}") as bus,
        open_directory(settings.directory) as directory,
        watch_beats(bus, settings.mesh.ns, settings.beats, BEATS.decode) as liveness,
        open_tracing(settings.tracing, "frontend", frontend) as tracing,
    ):
        await check_available(bus)  # tokenizers come from there: better said now than at the first request
        service = FrontendService(settings, frontend, bus, directory, liveness, tracing, metrics, health)
        await service.serve(shutdown, on_open)


class FrontendService:
    """The parts of a frontend, and the order in which they live. Belongs to one event loop."""

    def __init__(
        self,
        settings: FrontendSettings,
        frontend: str,
        bus: Bus,
        directory: Directory,
        liveness: Liveness[AnyBeat],
        tracing: Tracing,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._settings = settings
        self._frontend = frontend
        self._bus = bus
        self._directory = directory
        self._liveness = liveness
        self._tracing = tracing
        self._health = health
        self._metrics = FrontendMetrics(metrics)
        self._traffic = Traffic()
        objects = Objects(bus, settings.objects, subjects.objects_bucket(settings.mesh.ns))
        self._models = ModelDirectory(
            directory,
            objects,
            liveness,
            settings.mesh.ns,
            settings.text_files_limit_s,
            settings.tokenize_kept_bytes,
            settings.kept_models,
        )

    async def serve(self, shutdown: asyncio.Event, on_open: OnOpen) -> None:
        """Until `shutdown` is set and the streams have ended, or `drain_limit_s` is over."""
        settings = self._settings
        async with (
            self._beating(),
            self._following_models(),
            open_tokenize_pool(settings.tokenize_limits) as pool,
            open_trials() as trials,
            open_stream_hub(
                self._bus,
                settings.mesh.ns,
                self._frontend,
                liveness=self._liveness,
                rules=settings.hub_rules,
                tracing=self._tracing,
                metrics=self._metrics,
            ) as hub,
        ):
            generator = Generator(
                self._frontend,
                reader=PromptReader(self._models, pool, settings.tokenize_limit_s),
                trials=trials,
                hub=hub,
                request_limit_s=settings.request_limit_s,
                tracing=self._tracing,
                metrics=self._metrics,
                traffic=self._traffic,
            )
            await self._take_requests(generator, hub, shutdown, on_open)

    async def _take_requests(
        self, generator: Generator, hub: StreamHub, shutdown: asyncio.Event, on_open: OnOpen
    ) -> None:
        """Registered once requests are taken; unregistered before any is refused."""
        settings = self._settings
        limits = BodyLimits(settings.body_limit_bytes, settings.body_limit_s)
        api = OpenAiApi(generator, self._models, limits)
        app = make_app(api)
        if settings.kserve:
            add_kserve(app, generator, self._models, limits)
        async with (
            serve_http(
                DirectPosts(app, api.direct_posts(), api.border),
                settings.host,
                settings.port,
                setting="frontend.port",
                shares_port=settings.shares_port,
            ) as http,
            self._side_door(generator) as door,
        ):
            self._show_health(generator, door)
            async with self._registered(http.url):
                on_open(http.url)
                await shutdown.wait()
            if settings.shares_port:
                http.stop_listening()  # the others on the port take what comes from now on
            if door is not None:
                await door.stop_taking()  # and those in the queue group what comes over NATS
            await self._drain(generator, hub)

    @asynccontextmanager
    async def _side_door(self, generator: Generator) -> AsyncIterator[SideDoor | None]:
        if not self._settings.side_door:
            yield None
            return
        async with open_side_door(
            self._bus,
            self._settings.mesh.ns,
            self._frontend,
            generator=generator,
            models=self._models,
            rules=self._settings.door_rules,
            metrics=self._metrics,
        ) as door:
            yield door

    async def _drain(self, generator: Generator, hub: StreamHub) -> None:
        """Streams end by themselves, or at the limit with a typed error; then the port closes."""
        generator.stop_admitting()
        try:
            await generator.wait_idle(self._settings.mesh.drain_limit_s)
        except DeadlineExceeded as error:
            log.warning("%s", error)
            hub.fail_all(GoElsewhere(worker=self._frontend, reason="this frontend is ending"))
            with suppress(DeadlineExceeded):
                await generator.wait_idle(CUT_OFF_S)

    def _show_health(self, generator: Generator, door: SideDoor | None) -> None:
        require = self._health.require_to_be_ready
        require("bus", lambda: "" if self._bus.is_connected else "not connected")
        require("requests", lambda: "" if generator.is_admitting else "takes none any more")
        require("models", lambda: "" if self._models.served() else "no model can be served")
        if door is not None:
            require("side door", lambda: "" if door.is_taking else "takes no requests from NATS")
        self._health.note_started()
        self._metrics.tokenize_kept_bytes.set_function(lambda: self._models.num_kept_bytes)

    @asynccontextmanager
    async def _following_models(self) -> AsyncIterator[None]:
        async with open_tasks() as tasks:
            following = tasks.create_task(self._models.follow(), name="model directory")
            try:
                yield
            finally:
                following.cancel()

    def _beating(self) -> AbstractAsyncContextManager[None]:
        return beating(self._bus, self._settings.mesh.ns, self._frontend, self._beat, self._settings.beats)

    def _beat(self, is_leaving: bool) -> Beat:
        return Beat(self._frontend, "frontend", self._frontend, is_leaving, self._traffic.report())

    def _registered(self, url: str) -> AbstractAsyncContextManager[None]:
        key = keys.frontend(self._settings.mesh.ns, self._frontend)
        presence = Presence(self._frontend, self._frontend, self._settings.mesh.host_name, url)
        return registered(self._directory, key, presence)
