"""Who lives: this process's own beat, and the beats of the others.

The directory says who exists, beats say who is alive. A silence counts against a process only if it is not
ours: while our loop was late or the bus out of reach nobody is lost, and all clocks start again. Before
anybody is declared lost, one round trip with the server shows that his beat would have been here.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from proto.errors import DeadlineExceeded, Disconnected, InvalidRequest
from proto.subjects import beat_any, last_token
from services.bus import Bus, Delivery
from services.tasks import open_tasks

log = logging.getLogger(__name__)

ROUND_TRIP_S = 1.0
LISTEN_BEATS = 1.5

Beat = TypeVar("Beat")


class BeatSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval_s: Annotated[float, Meta(gt=0, description="Pause between two beats of a process")] = 1.0
    min_interval_s: Annotated[
        float, Meta(gt=0, description="Shortest pause between two beats when there is news")
    ] = 0.2
    lost_after_s: Annotated[float, Meta(gt=0, description="Silence after which a process counts as lost")] = (
        3.0
    )
    forget_after_s: Annotated[
        float, Meta(gt=0, description="Silence after which the last beat of a lost process is forgotten")
    ] = 60.0


class Beats:
    """This process's own beat. See `send_beats`.

    Where others may have taken it for lost meanwhile it listens before it beats: another process may have its
    name by now, and what it hears tells it so.
    """

    def __init__(self, bus: Bus, subject: str, payload: Callable[[], bytes], settings: BeatSettings) -> None:
        self._bus = bus
        self._subject = subject
        self._payload = payload
        self._settings = settings
        self._sent_s = math.inf
        self._num_connects = 0
        self._is_unsure = False
        self._news = asyncio.Event()

    def hurry(self) -> None:
        """There is news: the next beat comes as soon as the shortest pause allows."""
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._listen_if_unsure()
            self._news.clear()
            await self.send()
            await asyncio.sleep(self._settings.min_interval_s)
            try:
                async with asyncio.timeout(self._settings.interval_s - self._settings.min_interval_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    @property
    def may_be_lost(self) -> bool:
        """After a long silence, and after a loss of the bus, until it has listened."""
        return self._is_unsure or time.monotonic() - self._sent_s >= self._settings.lost_after_s

    def note_link(self, is_connected: bool) -> None:
        if is_connected:
            self._num_connects += 1
            self._is_unsure = True

    async def _listen_if_unsure(self) -> None:
        """For a beat of others, who do not lose us for it: they pardon whom they could not hear."""
        self._is_unsure = self.may_be_lost
        while self._is_unsure:
            before = self._num_connects
            await asyncio.sleep(
                min(LISTEN_BEATS * self._settings.interval_s, self._settings.lost_after_s / 2)
            )
            self._is_unsure = self._num_connects != before

    async def send_if_sure(self) -> None:
        """One beat, now, unless it has to listen first: the next one then follows."""
        if not self.may_be_lost:
            await self.send()

    async def send(self) -> None:
        """One beat, now; none while disconnected, since the next one says more."""
        try:
            await self._bus.publish(self._subject, self._payload())
        except Disconnected as error:
            log.debug("no beat: %s", error)
        else:
            self._sent_s = time.monotonic()


@asynccontextmanager
async def send_beats(
    bus: Bus, subject: str, payload: Callable[[], bytes], settings: BeatSettings
) -> AsyncIterator[Beats]:
    """Publishes `payload()` at each beat, and at the end once more, when it may say "leaving"."""
    beats = Beats(bus, subject, payload, settings)
    forget = bus.add_listener(beats.note_link)
    async with open_tasks() as tasks:
        beating = tasks.create_task(beats.run(), name="beats")
        try:
            yield beats
        finally:
            forget()
            beating.cancel()
            await beats.send_if_sure()


class _Heard(Generic[Beat]):
    """What is known of one process. `is_alive` changes in `Liveness` alone, which tells the listeners."""

    def __init__(self) -> None:
        self.heard_s = 0.0
        self.is_alive = False
        self.beat: Beat | None = None


class Liveness(Generic[Beat]):
    """The last beat of every process, and whether it still beats. See `watch_beats`."""

    def __init__(self, bus: Bus, settings: BeatSettings, decode: Callable[[bytes], Beat]) -> None:
        self._bus = bus
        self._settings = settings
        self._decode = decode
        self._heard: dict[str, _Heard[Beat]] = {}
        self._back_s = -math.inf
        self._listening_s = time.monotonic()
        self._change_listeners: list[Callable[[str, bool], None]] = []
        self._beat_listeners: list[Callable[[str, Beat], None]] = []

    def is_alive(self, process: str) -> bool:
        """False too for one that was never heard."""
        heard = self._heard.get(process)
        return heard is not None and heard.is_alive

    def is_lost(self, process: str) -> bool:
        """Whether it would have been heard by now, and was not."""
        has_listened_s = time.monotonic() - self._listening_s
        return not self.is_alive(process) and has_listened_s >= self._settings.lost_after_s

    def last(self, process: str) -> Beat | None:
        """The last beat that could be read, also of a lost process, until it is forgotten."""
        heard = self._heard.get(process)
        return None if heard is None else heard.beat

    def alive(self) -> list[str]:
        return [process for process, heard in self._heard.items() if heard.is_alive]

    def was_lost(self, within_s: float) -> bool:
        """Whether others may have taken this process itself for lost, as long ago as that at most."""
        return time.monotonic() - self._back_s <= within_s

    def on_change(self, listener: Callable[[str, bool], None]) -> None:
        """`listener(process, True)` at the first beat and at each return, `(process, False)` at each loss."""
        self._change_listeners.append(listener)

    def on_beat(self, listener: Callable[[str, Beat], None]) -> None:
        """`listener(process, beat)` at each beat that could be read."""
        self._beat_listeners.append(listener)

    def hear(self, delivery: Delivery) -> None:
        """Takes a beat. One that cannot be read, from a newer version say, is a sign of life all the same."""
        process = last_token(delivery.subject)
        heard = self._heard.setdefault(process, _Heard())
        heard.heard_s = time.monotonic()
        try:
            heard.beat = beat = self._decode(delivery.payload)
        except InvalidRequest as error:
            log.debug("an unreadable beat of %s: %s", process, error)
        else:
            for on_beat in self._beat_listeners:
                on_beat(process, beat)
        self._mark(process, heard, True)

    def pardon(self) -> None:
        """The silence was ours: everybody's clock starts again."""
        now_s = time.monotonic()
        last_s = max((heard.heard_s for heard in self._heard.values()), default=now_s)
        if now_s - last_s >= self._settings.lost_after_s:
            self._back_s = now_s
        self._listening_s = now_s
        for heard in self._heard.values():
            heard.heard_s = now_s

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(self._until_next_s())
            if self._overdue() and await self._is_link_sound():
                for process in self._overdue():
                    self._mark(process, self._heard[process], False)
            self._forget()

    def _until_next_s(self) -> float:
        """Until the first that could be lost is; a process that is new meanwhile cannot be lost before."""
        first_s = min((heard.heard_s for heard in self._heard.values() if heard.is_alive), default=None)
        wait_s = self._settings.lost_after_s
        return wait_s if first_s is None else max(0.001, first_s + wait_s - time.monotonic())

    def _overdue(self) -> list[str]:
        self._bus.watch.check()  # pardons all if this loop was late
        before_s = time.monotonic() - self._settings.lost_after_s
        return [p for p, heard in self._heard.items() if heard.is_alive and heard.heard_s <= before_s]

    async def _is_link_sound(self) -> bool:
        try:
            await self._bus.flush(ROUND_TRIP_S)
        except (Disconnected, DeadlineExceeded):
            self.pardon()
            return False
        return True

    def _mark(self, process: str, heard: _Heard[Beat], is_alive: bool) -> None:
        if heard.is_alive != is_alive:
            heard.is_alive = is_alive
            for listener in self._change_listeners:
                listener(process, is_alive)

    def _forget(self) -> None:
        before_s = time.monotonic() - self._settings.forget_after_s
        self._heard = {p: h for p, h in self._heard.items() if h.is_alive or h.heard_s > before_s}


@asynccontextmanager
async def watch_beats(
    bus: Bus, ns: str, settings: BeatSettings, decode: Callable[[bytes], Beat]
) -> AsyncIterator[Liveness[Beat]]:
    """Listens to every beat of the namespace.

    Raises:
        Disconnected, DeadlineExceeded: as `Bus.subscribe`.
    """
    liveness = Liveness(bus, settings, decode)
    subscription = await bus.subscribe(beat_any(ns), liveness.hear, perishable=True)
    forget_late = bus.watch.add_listener(liveness.pardon)
    forget_link = bus.add_listener(lambda _: liveness.pardon())
    try:
        async with open_tasks() as tasks:
            watching = tasks.create_task(liveness.watch(), name="liveness")
            try:
                yield liveness
            finally:
                watching.cancel()
    finally:
        forget_link()
        forget_late()
        await subscription.close()
