"""`play`: a scene on real NATS and etcd."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from proto import keys
from proto.codec import encode
from router.settings import RouterSettings
from services.bus import BusSettings, open_bus
from services.directory import DirectorySettings, open_directory
from services.mesh_settings import MeshSettings
from services.servers import Server
from tests.router.scene import LIMIT_S, Mesh, Play
from tests.router.scripted_worker import MODEL


@pytest.fixture
def play(nats_server: Server, etcd_server: Server, namespace: str) -> Play:
    """`play(scene)`: runs `scene(mesh)` in a namespace of its own, for `limit_s` at most."""
    settings = RouterSettings(
        mesh=MeshSettings(ns=namespace, beat_s=0.4, lost_after_s=1.0, drain_limit_s=0.4),
        bus=BusSettings(url=nats_server.url),
        directory=DirectorySettings(endpoints=[etcd_server.url]),
    )

    async def run(scene: Callable[[Mesh], Awaitable[None]], limit_s: float) -> None:
        async with (
            asyncio.timeout(limit_s),
            open_bus(settings.bus, "test") as bus,
            open_directory(settings.directory) as directory,
            AsyncExitStack() as stack,
        ):
            await directory.put(keys.model(namespace, MODEL.name), encode(MODEL))
            await scene(Mesh(namespace, bus, directory, settings, stack))

    return lambda scene, limit_s=LIMIT_S: asyncio.run(run(scene, limit_s))
