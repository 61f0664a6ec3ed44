"""Simulated workers in the process of the test, a real router, and a client that brings its tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proto import keys, subjects
from proto.codec import encode
from proto.control import CONTROL_REPLIES, ControlReply, ControlRequest
from proto.names import new_id
from proto.reports import BEATS, LoadReport
from router.settings import RouterSettings
from services.bus import Bus, BusSettings, Delivery, open_bus
from services.directory import Changed, Directory, DirectorySettings, Listed, open_directory
from services.mesh_settings import MeshSettings
from services.servers import Server
from tests.mesh.token_client import TokenClient
from tests.router.scene import running_router
from tests.services.waiting import wait_for
from workers.engine.simulated_model import SimulatedModel
from workers.simulated.process import Crowd, open_simulation
from workers.simulated.settings import SimulateSettings

MODEL = "text"
FAST = SimulatedModel(first_token=10, num_tokens=400, step_s=0.004, prefill_token_s=0.00002)
ASK_S = 5.0


@dataclass
class Scene:
    """One namespace. `reports` are the last of each worker."""

    settings: SimulateSettings
    crowd: Crowd
    bus: Bus
    directory: Directory
    client: TokenClient
    reports: dict[str, LoadReport]

    @property
    def ns(self) -> str:
        return self.settings.mesh.ns

    async def control(self, worker: str, request: ControlRequest) -> ControlReply:
        subject = subjects.worker_control(self.ns, worker)
        return CONTROL_REPLIES.decode(await self.bus.request(subject, encode(request), ASK_S))

    async def listed(self) -> set[str]:
        """The workers that the directory has."""
        return {keys.last_part(entry.key) for entry in await self.directory.list(keys.workers(self.ns))}

    async def wait_withdrawn(self, key: str) -> None:
        """Until the directory has no such key."""
        async with asyncio.timeout(ASK_S), self.directory.watch(key) as changes:
            async for change in changes:
                if not isinstance(change, Changed) and not (isinstance(change, Listed) and change.entries):
                    return

    async def wait_reports(self) -> None:
        """Until every worker has said how it is since now."""
        self.reports.clear()
        await wait_for(lambda: self.reports.keys() >= self.crowd.workers.keys())

    def hear(self, delivery: Delivery) -> None:
        beat = BEATS.decode(delivery.payload)
        if isinstance(beat, LoadReport):
            self.reports[beat.worker] = beat


def settings_of(nats: Server, etcd: Server, model: Path, **fields: Any) -> SimulateSettings:
    """Of a namespace of its own. `fields` are those of the settings."""
    mesh = MeshSettings(ns=f"test-{new_id()}", beat_s=0.25, lost_after_s=1.0, drain_limit_s=1.0)
    told: dict[str, Any] = {
        "simulated": FAST,
        "context_tokens": 4096,
        "num_blocks": 256,
        "step_tokens": 512,
    } | fields
    return SimulateSettings(
        mesh=mesh,
        bus=BusSettings(url=nats.url),
        directory=DirectorySettings(endpoints=[etcd.url], lease_ttl_s=2),
        model=str(model),
        **told,
    )


@asynccontextmanager
async def open_scene(settings: SimulateSettings, **router: Any) -> AsyncIterator[Scene]:
    """The crowd is ready and a router takes requests. `router` are fields of its settings."""
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(open_bus(settings.bus, "test"))
        directory = await stack.enter_async_context(open_directory(settings.directory))
        crowd = await stack.enter_async_context(open_simulation(settings))
        client = TokenClient(bus, settings.mesh.ns)
        scene = Scene(settings, crowd, bus, directory, client, {})
        await bus.subscribe(subjects.beat_any(settings.mesh.ns), scene.hear)
        await client.open()
        name = f"router-{new_id()}"
        told = RouterSettings(mesh=settings.mesh, bus=settings.bus, directory=settings.directory, **router)
        await stack.enter_async_context(running_router(told, name))
        async with directory.watch(keys.router(settings.mesh.ns, name)) as changes:
            async for change in changes:
                if isinstance(change, Changed) or (isinstance(change, Listed) and change.entries):
                    break
        yield scene
