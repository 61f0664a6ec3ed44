"""The work queue: jobs that one taker does, and another does if the first falls silent.

```
  put ──► waiting ──fetch──► taken ──done / terminate──► gone
             ▲                 │
             └── give_back, or silence for ack_wait_s ──┘   (at most max_deliveries times)
```

A stream whose subjects are kinds of jobs, with one durable pull consumer a subject. Both are made again when
a server comes back without them. `services.taker` is the side that fetches.
"""

import time
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.errors import Disconnected, NoResponder
from services.bus import Bus, Delivery
from services.jetstream import (
    NS_PER_S,
    ConsumerConfig,
    ConsumerInfo,
    Storage,
    StreamConfig,
    ask_api,
    ensure_consumer,
    ensure_stream,
    put_message,
)

ACK_TIMEOUT_S = 2.0


class WorkQueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    storage: Annotated[
        Storage, Meta(description="Where jobs wait: memory (lost with the server, then sent again) or file")
    ] = "memory"
    num_replicas: Annotated[int, Meta(ge=1, le=5, description="Servers of the cluster that hold a job")] = 1
    max_age_s: Annotated[float, Meta(gt=0, description="Age at which a job is dropped")] = 60.0
    max_jobs: Annotated[int, Meta(gt=0, description="Jobs that may wait or be in hand; beyond, refused")] = (
        4096
    )
    duplicate_window_s: Annotated[
        float, Meta(gt=0, description="How long a second put of one job id is recognised, at most the age")
    ] = 60.0
    ack_wait_s: Annotated[
        float, Meta(gt=0, description="Silence of a taker after which its job goes to another")
    ] = 3.0
    max_deliveries: Annotated[int, Meta(ge=1, description="Takers a job may have, one after the other")] = 5
    max_taken: Annotated[int, Meta(gt=0, description="Jobs of one subject that may be in hand at once")] = (
        1024
    )
    max_fetches: Annotated[int, Meta(gt=0, description="Takers that may wait on one subject at once")] = 512


class Work:
    """A job in hand. Exactly one of `done`, `give_back`, `terminate` ends it; `progress` keeps it."""

    def __init__(self, delivery: Delivery, max_deliveries: int) -> None:
        self.delivery = delivery
        self.num_deliveries = _num_deliveries(delivery.reply)
        self.is_last_delivery = self.num_deliveries >= max_deliveries
        self.taken_s = time.monotonic()

    @property
    def payload(self) -> bytes:
        return self.delivery.payload

    @property
    def is_expired(self) -> bool:
        """Whether this process was late since it came: another may have the job by now."""
        return self.delivery.is_expired

    async def progress(self) -> None:
        """Says that the job is being done: `ack_wait_s` starts again. Lost quietly while disconnected."""
        with suppress(Disconnected):
            await self.delivery.respond(b"+WPI")

    async def done(self) -> None:
        """The job is done with.

        Raises:
            Disconnected, DeadlineExceeded, NoResponder: the server may not know; another may get it too.
        """
        await self._end(b"+ACK")

    async def give_back(self, delay_s: float = 0.0) -> None:
        """Another shall do it, not before `delay_s` has passed. Raises as `done`."""
        delay = b' {"delay": %d}' % int(delay_s * NS_PER_S) if delay_s > 0 else b""
        await self._end(b"-NAK" + delay)

    async def terminate(self) -> None:
        """Nobody shall do it: it cannot be done. Raises as `done`."""
        await self._end(b"+TERM")

    async def _end(self, verdict: bytes) -> None:
        await self.delivery.bus.exchange(self.delivery.reply, verdict, ACK_TIMEOUT_S)


def _num_deliveries(reply: str) -> int:
    """Of `$JS.ACK.stream.consumer.delivered...`; with domain and account before `stream` in newer servers."""
    tokens = reply.split(".")
    return int(tokens[6] if len(tokens) >= 11 else tokens[4])


class WorkQueue:
    """See `open_work_queue`."""

    def __init__(self, bus: Bus, settings: WorkQueueSettings, stream: str, subjects: str) -> None:
        self.bus = bus
        self.settings = settings
        self.stream = stream
        self._config = StreamConfig(
            name=stream,
            subjects=[subjects],
            retention="workqueue",
            storage=settings.storage,
            num_replicas=settings.num_replicas,
            max_age=int(settings.max_age_s * NS_PER_S),
            max_msgs=settings.max_jobs,
            duplicate_window=int(min(settings.duplicate_window_s, settings.max_age_s) * NS_PER_S),
        )

    async def ensure(self) -> None:
        """The stream is there, as set. Raises as `open_work_queue`."""
        await ensure_stream(self.bus, self._config)

    async def ensure_consumer(self, subject: str) -> str:
        """The consumer of `subject` is there, as set; its name. Raises as `open_work_queue`."""
        consumer = _plan_consumer(self.settings, subject)
        await ensure_consumer(self.bus, self.stream, consumer)
        return consumer.durable_name

    async def put(self, subject: str, job: str, payload: bytes) -> bool:
        """Adds a job; False if one of that id was put before.

        Raises:
            Overloaded: as many jobs as may be are there.
            Disconnected, DeadlineExceeded: it may or may not be there; putting it again does no harm.
        """
        headers = {"Nats-Msg-Id": job}
        try:
            ack = await put_message(self.bus, subject, payload, headers)
        except NoResponder:  # the server came back without the stream
            await self.ensure()
            ack = await put_message(self.bus, subject, payload, headers)
        return not ack.duplicate

    async def num_pending(self, subject: str) -> int:
        """Jobs on `subject` that wait for a taker. Raises as `open_work_queue`."""
        consumer = await self.ensure_consumer(subject)
        info = await ask_api(self.bus, f"CONSUMER.INFO.{self.stream}.{consumer}", None, ConsumerInfo)
        return info.num_pending


async def open_work_queue(bus: Bus, settings: WorkQueueSettings, stream: str, subjects: str) -> WorkQueue:
    """The queue behind `subjects` (one wildcard), in the JetStream stream named `stream`, made if absent.

    Raises:
        InvalidSetting: the server has no JetStream, or an existing stream cannot become as set.
        Disconnected, DeadlineExceeded, NoResponder: as `Bus.exchange`.
    """
    queue = WorkQueue(bus, settings, stream, subjects)
    await queue.ensure()
    return queue


def _plan_consumer(settings: WorkQueueSettings, subject: str) -> ConsumerConfig:
    return ConsumerConfig(
        # names have no dots; two subjects of one queue differ in their last token, so their names differ too
        durable_name=subject.replace(".", "_"),
        filter_subject=subject,
        ack_wait=int(settings.ack_wait_s * NS_PER_S),
        max_deliver=settings.max_deliveries,
        max_ack_pending=settings.max_taken,
        max_waiting=settings.max_fetches,
    )
