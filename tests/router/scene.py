"""A scene for the router: a namespace on real servers, a model, and whatever a test starts in it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import msgspec

from proto import keys, subjects
from proto.codec import encode
from proto.errors import (
    KvmeshError,
    from_fault,
)
from proto.names import new_id
from proto.requests import (
    ROUTE_REPLIES,
    GenerateRequest,
    Refused,
    Routed,
    RouteReply,
    Sampling,
    Stopping,
)
from router.service import serve_router
from router.settings import RouterSettings
from services.bus import Bus
from services.directory import Changed, Directory, Listed
from tests.router.scripted_worker import MODEL, ScriptedWorker, run_worker
from tests.router.timed_engine import TimedEngine

LIMIT_S = 20.0
CLIENT = "the-frontend"


class Mesh:
    """A namespace with a model, and whatever workers and routers a test starts in it."""

    def __init__(
        self, ns: str, bus: Bus, directory: Directory, settings: RouterSettings, stack: AsyncExitStack
    ) -> None:
        self.ns = ns
        self.bus = bus
        self.directory = directory
        self.settings = settings
        self._stack = stack

    async def worker(self, name: str, **fields: Any) -> ScriptedWorker:
        def prepare(worker: ScriptedWorker) -> None:
            for field, value in fields.items():
                setattr(worker, field, value)

        running = run_worker(self.bus, self.directory, self.ns, name, prepare)
        return await self._stack.enter_async_context(running)

    async def timed_worker(self, name: str, engine: TimedEngine) -> ScriptedWorker:
        """A worker that takes its time."""
        running = run_worker(self.bus, self.directory, self.ns, name, engine.drive)
        return await self._stack.enter_async_context(running)

    async def router(self, **fields: Any) -> str:
        """A router that takes requests; its id."""
        router = f"router-{new_id()}"
        settings = msgspec.structs.replace(self.settings, **fields)
        await self._stack.enter_async_context(running_router(settings, router))
        await self.wait_registered(router)
        return router

    async def wait_registered(self, router: str) -> None:
        async with self.directory.watch(keys.router(self.ns, router)) as changes:
            async for change in changes:
                if isinstance(change, Changed) or (isinstance(change, Listed) and change.entries):
                    return

    async def is_registered(self, router: str) -> bool:
        return await self.directory.get(keys.router(self.ns, router)) is not None

    async def route(self, request: GenerateRequest) -> RouteReply:
        payload = await self.bus.request(subjects.route(self.ns, request.model), encode(request), 5.0)
        return ROUTE_REPLIES.decode(payload)

    async def route_at_last(self, request: GenerateRequest) -> Routed:
        """As `route`, again while no worker is ready."""
        async with asyncio.timeout(5.0):
            while not isinstance(reply := await self.route(request), Routed):
                assert isinstance(reply, Refused)
                assert reply.fault.code == "no_worker"
        return reply

    async def send(self, prompt: bytes, **fields: Any) -> str:
        """The worker that a request with this prompt goes to."""
        reply = await self.route(a_request(prompt, **fields))
        assert isinstance(reply, Routed), reply
        return reply.decision.worker

    async def refusal(self, prompt: bytes, **fields: Any) -> KvmeshError:
        reply = await self.route(a_request(prompt, **fields))
        assert isinstance(reply, Refused), reply
        return from_fault(reply.fault)


def a_request(prompt: bytes, **fields: Any) -> GenerateRequest:
    request = GenerateRequest(
        new_id(), 1, MODEL.name, CLIENT, prompt, Sampling(), Stopping(32), deadline_s=30.0
    )
    return msgspec.structs.replace(request, **fields)


@asynccontextmanager
async def running_router(settings: RouterSettings, router: str) -> AsyncIterator[asyncio.Event]:
    """A router for the time of the body; the event ends it."""
    shutdown = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve_router(settings, router, shutdown), name=router)
        try:
            yield shutdown
        finally:
            shutdown.set()


class Play(Protocol):
    """Runs a scene in a namespace of its own, for `limit_s` seconds at most."""

    def __call__(self, scene: Callable[[Mesh], Awaitable[None]], limit_s: float = LIMIT_S) -> None: ...
