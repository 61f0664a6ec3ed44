"""A service in NATS' micro-service convention: found by `$SRV.PING`, told by `INFO`, measured by `STATS`.

Answered over our own bus. The client's `nats.micro` is bound to one connection; here connections come and go
beneath the bus, and interests stay.

Source: NATS ADR-32.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.errors import KvmeshError
from services.bus import Bus, Delivery, Handler, Subscription, Wish
from services.tasks import open_tasks

log = logging.getLogger(__name__)

ERROR_HEADER = "Nats-Service-Error"
ERROR_CODE_HEADER = "Nats-Service-Error-Code"
_VERBS = ("PING", "INFO", "STATS")

MicroName = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+$")]


class MicroIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which service this is, and which instance of it. `version` is a semantic one."""

    name: MicroName
    id: str
    version: str
    metadata: dict[str, str] = {}


class MicroEndpoint:
    """One subject of a service, and what is counted of it. `queue` empty: every instance hears all."""

    def __init__(
        self, name: MicroName, subject: str, handler: Handler, *, queue: str, metadata: dict[str, str]
    ) -> None:
        self.name = name
        self.subject = subject
        self.queue = queue
        self.metadata = metadata
        self.handler = handler
        self.num_requests = 0
        self.num_errors = 0
        self.took_ns = 0
        self.last_error = ""

    def note(self, began_s: float, error: str) -> None:
        """A request that came at `began_s` has ended; `error` is empty for one that went well."""
        self.num_requests += 1
        self.took_ns += round((time.monotonic() - began_s) * 1e9)
        if error:
            self.num_errors += 1
            self.last_error = error


class _Ping(MicroIdentity, frozen=True, kw_only=True):
    type: Literal["io.nats.micro.v1.ping_response"] = "io.nats.micro.v1.ping_response"


class _EndpointInfo(msgspec.Struct, frozen=True):
    name: str
    subject: str
    queue_group: str
    metadata: dict[str, str]


class _Info(MicroIdentity, frozen=True, kw_only=True):
    description: str
    endpoints: list[_EndpointInfo]
    type: Literal["io.nats.micro.v1.info_response"] = "io.nats.micro.v1.info_response"


class _EndpointStats(msgspec.Struct, frozen=True):
    """Units: nanoseconds."""

    name: str
    subject: str
    queue_group: str
    num_requests: int
    num_errors: int
    last_error: str
    processing_time: int
    average_processing_time: int
    data: dict[str, str] = {}  # there is none; readers differ in whether they bear null, or none at all


class _Stats(MicroIdentity, frozen=True, kw_only=True):
    started: str
    endpoints: list[_EndpointStats]
    type: Literal["io.nats.micro.v1.stats_response"] = "io.nats.micro.v1.stats_response"


class MicroService:
    """See `open_micro`. Belongs to one event loop."""

    def __init__(
        self,
        bus: Bus,
        identity: MicroIdentity,
        description: str,
        endpoints: Sequence[MicroEndpoint],
        max_askers: int,
    ) -> None:
        self._bus = bus
        self._identity = msgspec.structs.asdict(identity)
        self._description = description
        self._endpoints = endpoints
        self._started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._asked: asyncio.Queue[Delivery] = asyncio.Queue(max_askers)
        self._subscriptions: list[Subscription] = []

    async def open(self) -> None:
        """See `open_micro`."""
        name, instance = self._identity["name"], self._identity["id"]
        asked = [
            Wish(f"$SRV.{verb}{which}", self._hear)
            for verb in _VERBS
            for which in ("", f".{name}", f".{name}.{instance}")
        ]
        taken = [Wish(each.subject, each.handler, each.queue) for each in self._endpoints]
        self._subscriptions = await self._bus.subscribe_all([*taken, *asked])

    async def close(self) -> None:
        """Takes no more; what has come already has been handed over on return. More than once is once."""
        while self._subscriptions:
            await self._subscriptions.pop(0).close()

    def _hear(self, delivery: Delivery) -> None:
        if self._asked.full():
            log.debug("too many ask what this service is")
        else:
            self._asked.put_nowait(delivery)

    async def answer(self) -> None:
        """Says what was asked by `$SRV`. Without end."""
        while True:
            delivery = await self._asked.get()
            try:
                await delivery.respond(self._word(delivery.subject.split(".")[1]))
            except KvmeshError as error:
                log.debug("who asked what this service is cannot be answered: %s", error)

    def _word(self, verb: str) -> bytes:
        match verb:
            case "INFO":
                return msgspec.json.encode(self._info())
            case "STATS":
                return msgspec.json.encode(self._stats())
        return msgspec.json.encode(_Ping(**self._identity))

    def _info(self) -> _Info:
        endpoints = [
            _EndpointInfo(each.name, each.subject, each.queue, each.metadata) for each in self._endpoints
        ]
        return _Info(**self._identity, description=self._description, endpoints=endpoints)

    def _stats(self) -> _Stats:
        endpoints = [
            _EndpointStats(
                each.name,
                each.subject,
                each.queue,
                each.num_requests,
                each.num_errors,
                each.last_error,
                each.took_ns,
                each.took_ns // max(1, each.num_requests),
            )
            for each in self._endpoints
        ]
        return _Stats(**self._identity, started=self._started, endpoints=endpoints)


@asynccontextmanager
async def open_micro(
    bus: Bus,
    identity: MicroIdentity,
    description: str,
    endpoints: Sequence[MicroEndpoint],
    max_askers: int,
) -> AsyncIterator[MicroService]:
    """A service that takes requests, and can be found, for the time of the body or until it is closed.

    Args: `max_askers`: questions by `$SRV` that may wait; beyond, they are dropped.

    Raises:
        Disconnected, DeadlineExceeded: as `Bus.subscribe`.
    """
    service = MicroService(bus, identity, description, endpoints, max_askers)
    async with open_tasks() as tasks:
        await service.open()
        answering = tasks.create_task(service.answer(), name="micro-service")
        try:
            yield service
        finally:
            await service.close()
            answering.cancel()
