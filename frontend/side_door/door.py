"""The door itself: requests from the bus, each a task of its own, ended when its client has gone or says so.

```
 openai.{chat,completions,...} ──► a task: call ─► answer ─► reply subject of the client
 openai.cancel  ── by request id ──►  ▲  heard by every frontend
 the control subject of an answer ───►┘  any word of the client; the server's that nobody listens
```
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version

import msgspec

from frontend.answer import send_answer
from frontend.generation import Generator
from frontend.models import ModelDirectory
from frontend.openai.calls import FACTS_HEADER
from frontend.request_id import REQUEST_ID_HEADER, choose_request_id
from frontend.side_door.bus_reply import BusReply
from frontend.side_door.door_rules import DoorRules
from frontend.side_door.endpoints import CallEndpoint, SayEndpoint, make_endpoints
from proto import subjects
from proto.errors import (
    Cancelled,
    DeadlineExceeded,
    Disconnected,
    InternalFault,
    KvmeshError,
    Overloaded,
    PayloadTooLarge,
)
from proto.names import new_id
from services.backoff import Backoff
from services.bus import Bus, Delivery
from services.metrics import FrontendMetrics
from services.micro import MicroEndpoint, MicroIdentity, open_micro
from services.tasks import open_tasks

log = logging.getLogger(__name__)

BEATS_HEADER = "Kvmesh-Beats"
SERVICE = "kvmesh"
ABOUT = "OpenAI's API, served by a mesh"


class Cancellation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `openai.cancel` carries."""

    request_id: str


class SideDoor:
    """See `open_side_door`. Belongs to one event loop."""

    def __init__(
        self,
        bus: Bus,
        ns: str,
        generator: Generator,
        models: ModelDirectory,
        rules: DoorRules,
        metrics: FrontendMetrics,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._bus = bus
        self._ns = ns
        self._generator = generator
        self._models = models
        self._rules = rules
        self._tasks = tasks
        self._control = bus.new_inbox()
        self._open: dict[str, BusReply] = {}
        self._taking: asyncio.Task[None] | None = None
        self._is_taking = False
        metrics.side_door_running.set_function(lambda: len(self._open))

    @property
    def is_taking(self) -> bool:
        """Whether requests come here."""
        return self._is_taking

    @property
    def control_subjects(self) -> str:
        """Of all answers: the last token says which."""
        return f"{self._control}.*"

    def start_taking(self, identity: MicroIdentity) -> None:
        self._taking = self._tasks.create_task(self._take_requests(identity), name="side door")

    async def stop_taking(self) -> None:
        """Leaves new requests to others; those that have come go on. More than once is once."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait({self._taking})

    def leave_all(self) -> None:
        for reply in self._open.values():
            reply.leave()

    async def _take_requests(self, identity: MicroIdentity) -> None:
        """From the moment that a model can be served. Without end."""
        await self._models.wait_served()
        backoff = Backoff()
        while True:
            try:
                async with open_micro(
                    self._bus, identity, ABOUT, self._micro_endpoints(), self._rules.max_askers
                ):
                    self._is_taking = True
                    await asyncio.Event().wait()
            except (Disconnected, DeadlineExceeded) as error:
                log.info("the side door opens later: %s", error)
                await asyncio.sleep(backoff.next_s())
            finally:
                self._is_taking = False

    def _micro_endpoints(self) -> list[MicroEndpoint]:
        cancel = subjects.openai(self._ns, "cancel")
        return [
            *(self._micro(each) for each in make_endpoints(self._ns, self._models, self._generator.reader)),
            MicroEndpoint("cancel", cancel, self.take_cancellation, queue="", metadata={}),
        ]

    def _micro(self, endpoint: CallEndpoint | SayEndpoint) -> MicroEndpoint:
        def take(delivery: Delivery) -> None:
            if not delivery.reply or subjects.is_ours(delivery.reply):
                log.debug("a request on %s has no reply subject of a client's own", delivery.subject)
                return
            serving = self._serve(endpoint, micro, delivery, time.monotonic())
            self._tasks.create_task(serving, name=f"side door {endpoint.name}")

        micro = MicroEndpoint(
            endpoint.name,
            endpoint.subject,
            take,
            queue=subjects.FRONTENDS,
            metadata={"about": endpoint.about},
        )
        return micro

    async def _serve(
        self,
        endpoint: CallEndpoint | SayEndpoint,
        micro: MicroEndpoint,
        delivery: Delivery,
        arrived_s: float,
    ) -> None:
        answer = new_id()
        reply = BusReply(
            self._bus,
            delivery.reply,
            f"{self._control}.{answer}",
            choose_request_id(_header(delivery.headers, REQUEST_ID_HEADER)),
            arrived_s,
            has_beats=_header(delivery.headers, BEATS_HEADER) == "1",
        )
        try:
            self._check(delivery)
            self._open[answer] = reply
            await self._answer(endpoint, delivery, reply)
        except KvmeshError as error:
            await reply.refuse(error)
        except Exception:  # the border: a bug ends one request, with an answer
            log.exception("a request failed")
            await reply.refuse(InternalFault(reason="see the log"))
        finally:
            self._open.pop(answer, None)
            micro.note(arrived_s, reply.error_code)

    def _check(self, delivery: Delivery) -> None:
        num_bytes = len(delivery.payload)
        if num_bytes > self._rules.body_bytes:
            raise PayloadTooLarge(num_bytes=num_bytes, limit_bytes=self._rules.body_bytes)
        if len(self._open) >= self._rules.max_open:
            reason = f"{len(self._open)} requests from NATS are open in this frontend"
            raise Overloaded(reason=reason, retry_after_s=1)

    async def _answer(
        self, endpoint: CallEndpoint | SayEndpoint, delivery: Delivery, reply: BusReply
    ) -> None:
        match endpoint:
            case CallEndpoint():
                wants_facts = _header(delivery.headers, FACTS_HEADER) == "1"
                await send_answer(
                    self._generator, endpoint.open(delivery.payload, wants_facts=wants_facts), reply
                )
                if reply.is_cancelled:
                    raise Cancelled
            case SayEndpoint():
                await reply.send_whole(await endpoint.say(delivery.payload))

    def take_cancellation(self, delivery: Delivery) -> None:
        """Every frontend hears it; the one that has the request says so."""
        try:
            asked = msgspec.json.decode(delivery.payload, type=Cancellation)
        except msgspec.DecodeError as error:
            log.debug("a cancellation cannot be read: %s", error)
            return
        found = [reply for reply in self._open.values() if reply.request_id == asked.request_id]
        for reply in found:
            reply.cancel()
        if found and not subjects.is_ours(delivery.reply):
            self._tasks.create_task(_confirm(delivery, len(found)), name="side door cancel")

    def take_control(self, delivery: Delivery) -> None:
        """A word on the reply subject of an answer's messages."""
        reply = self._open.get(subjects.last_token(delivery.subject))
        if reply is None:
            return
        if delivery.is_no_responder:
            reply.apply_unheard()
        else:
            reply.cancel()

    def apply_link(self, is_connected: bool) -> None:
        for reply in self._open.values():
            reply.apply_link(is_connected)

    async def beat(self) -> None:
        """Signs of life where nothing else is said. Without end."""
        while True:
            await asyncio.sleep(self._rules.beat_s / 2)
            for reply in list(self._open.values()):
                try:
                    await reply.send_sign_of_life(self._rules.beat_s)
                except KvmeshError as error:
                    log.debug("no sign of life for a client: %s", error)


@asynccontextmanager
async def open_side_door(
    bus: Bus,
    ns: str,
    frontend: str,
    *,
    generator: Generator,
    models: ModelDirectory,
    rules: DoorRules,
    metrics: FrontendMetrics,
) -> AsyncIterator[SideDoor]:
    """A door for the time of the body; what is open at its end is cancelled.

    Raises:
        Disconnected, DeadlineExceeded: as `Bus.subscribe`.
    """
    identity = MicroIdentity(name=SERVICE, id=frontend, version=version("kvmesh"), metadata={"ns": ns})
    async with open_tasks() as tasks:
        door = SideDoor(bus, ns, generator, models, rules, metrics, tasks)
        control = await bus.subscribe(door.control_subjects, door.take_control)
        forget = bus.add_listener(door.apply_link)
        door.start_taking(identity)
        beating = tasks.create_task(door.beat(), name="side door beats")
        try:
            yield door
        finally:
            beating.cancel()
            await door.stop_taking()
            door.leave_all()
            forget()
            await control.close()


def _header(headers: Mapping[str, str], name: str) -> str:
    """By its name in whatever case: other clients than ours may keep to one of their own."""
    return next((value for key, value in headers.items() if key.lower() == name.lower()), "")


async def _confirm(delivery: Delivery, num_cancelled: int) -> None:
    try:
        await delivery.respond(msgspec.json.encode({"cancelled": num_cancelled}))
    except KvmeshError as error:
        log.debug("who cancelled cannot be answered: %s", error)
