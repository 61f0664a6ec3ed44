"""The link under the bus: a connection that comes back for ever, and the interests it carries.

```
  open ──connect──► connected ──lost──► disconnected ──(back-off, for ever)──► connected ...
```

Every cause of a loss takes the same path: the old connection is closed for good, a new one is made, every
interest is put on it, and only when the server has confirmed them does the link say that it is connected.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.errors import DeadlineExceeded, Disconnected, InvalidSetting
from services.backoff import Backoff
from services.nats_connection import Channel, Connection, Dial, OnMessage, connect

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.02


class BusSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[
        str, Meta(description="NATS servers, comma-separated: nats://[user:password@]host:port")
    ] = "nats://127.0.0.1:4222"
    connect_timeout_s: Annotated[float, Meta(gt=0, description="How long a start waits for a server")] = 30.0
    wrong_server_after_s: Annotated[
        float, Meta(ge=0, description="How long a start bears a server that refuses us or speaks no NATS")
    ] = 5.0
    greeting_timeout_s: Annotated[
        float, Meta(gt=0, description="How long a server may take to accept and greet")
    ] = 2.0
    reconnect_pause_s: Annotated[
        float, Meta(gt=0, description="Longest pause between two attempts to connect")
    ] = 0.25
    ping_interval_s: Annotated[
        float, Meta(gt=0, description="Pause between pings, and what each may take")
    ] = 2.0
    max_missed_pings: Annotated[int, Meta(ge=1, description="Pings missed in a row that mean a loss")] = 2
    max_unsent_bytes: Annotated[
        int, Meta(gt=0, description="Bytes that may wait for a server that has stopped to take them")
    ] = 64 * 2**20
    max_pending_messages: Annotated[
        int, Meta(gt=0, description="Messages a subscription buffers; beyond, they are dropped and counted")
    ] = 65_536
    max_pending_bytes: Annotated[
        int, Meta(gt=0, description="Bytes a subscription buffers; beyond, messages are dropped and counted")
    ] = 256 * 2**20
    late_after_s: Annotated[
        float, Meta(gt=0, description="Lateness of the event loop that expires what it had buffered")
    ] = 1.0
    inbox_prefix: Annotated[str, Meta(description="First tokens of reply subjects")] = "_INBOX"


Listener = Callable[[bool], None]
"""Called with True when connected (every interest is live again), with False when the connection is lost."""


class Interest:
    """A subject that every connection of a link subscribes to; `channel` is its place on the present one."""

    def __init__(self, subject: str, queue: str, on_message: OnMessage) -> None:
        self.subject = subject
        self.queue = queue
        self.on_message = on_message
        self.channel: Channel | None = None


class Link:
    """Owned by one `Bus`, which runs `keep` in a task of its own for as long as it is open."""

    def __init__(self, settings: BusSettings, name: str) -> None:
        self.num_connects = 0
        self.max_payload_bytes = 0
        self._settings = settings
        self._dial = _dial(settings, name)
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._interests: set[Interest] = set()
        self._listeners: list[Listener] = []
        self._num_dropped_before = 0

    @property
    def peer(self) -> str:
        """The servers by host and port, without credentials."""
        return self._dial.peer

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_usable

    @property
    def num_dropped(self) -> int:
        return self._num_dropped_before + (self._connection.num_dropped if self._connection else 0)

    @property
    def connection(self) -> Connection:
        """
        Raises:
            Disconnected: there is none now.
        """
        if self._connection is None or not self._connection.is_usable:
            self._note_loss()
            raise Disconnected(peer=self.peer)
        return self._connection

    def _note_loss(self) -> None:
        """Who finds the connection broken says so: `keep` need not find it again."""
        self._connected.clear()
        if self._connection is not None:
            self._connection.lost.set()

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_connected(self) -> None:
        """Returns when there is a connection, as far as is known: a loss shows with the next read or ping."""
        if not self.is_connected:
            self._note_loss()
        await self._connected.wait()

    async def add(self, interests: Sequence[Interest]) -> None:
        """Live on return, and again after every reconnect. A server that takes its time is borne with for as
        long as a start bears with none: who begins among many where cores are short must not end of it.

        Raises:
            Disconnected, DeadlineExceeded: the server could not be told; the interests are not kept.
        """
        connection = self.connection
        self._interests.update(interests)
        try:
            for interest in interests:
                await self._attach(interest, connection)
            await self._confirm(connection)
        except BaseException:
            for interest in interests:
                await self.remove(interest)
            raise

    async def _confirm(self, connection: Connection) -> None:
        """In many short pings: one that waits learns nothing of a loss."""
        give_up_s = time.monotonic() + self._settings.connect_timeout_s
        while True:
            try:
                return await connection.ping(self._settings.ping_interval_s)
            except DeadlineExceeded:
                if time.monotonic() >= give_up_s:
                    raise

    async def remove(self, interest: Interest) -> None:
        """What is here already has been handed over on return."""
        self._interests.discard(interest)
        channel, interest.channel = interest.channel, None
        if channel is not None and self._connection is not None:
            await self._connection.unsubscribe(channel)

    async def _attach(self, interest: Interest, connection: Connection) -> None:
        interest.channel = await connection.subscribe(
            interest.subject,
            interest.queue,
            interest.on_message,
            self._settings.max_pending_messages,
            self._settings.max_pending_bytes,
        )

    async def open(self, first: Interest) -> None:
        """Makes the first connection, with `first` on it.

        Raises:
            Disconnected: no server within `connect_timeout_s`.
            InvalidSetting: the URL is wrong, or its server refuses us or does not speak NATS.
        """
        self._interests.add(first)
        backoff = self._backoff()
        give_up_s = time.monotonic() + self._settings.connect_timeout_s
        wrong_since_s: float | None = None
        while not self.is_connected:
            try:
                await self._establish()
            except (Disconnected, DeadlineExceeded) as error:
                wrong_since_s = None
                if time.monotonic() > give_up_s:
                    raise Disconnected(peer=self.peer) from error
            except InvalidSetting:  # a proxy before a server that is starting looks like this for a moment
                wrong_since_s = wrong_since_s or time.monotonic()
                if time.monotonic() - wrong_since_s >= self._settings.wrong_server_after_s:
                    raise
            await asyncio.sleep(0 if self.is_connected else backoff.next_s())

    async def keep(self) -> None:
        """Replaces the connection each time it is lost, without end."""
        while True:
            if self._connection is not None:
                await self._wait_lost(self._connection)
            await self.close()
            log.warning("the connection to %s was lost", self.peer)
            await self._reopen()
            log.info("connected to %s again", self.peer)

    async def _reopen(self) -> None:
        backoff = self._backoff()
        while self._connection is None:
            try:
                await self._establish()
            except (Disconnected, DeadlineExceeded, InvalidSetting) as error:
                log.debug("no connection yet: %s", error)
                await asyncio.sleep(backoff.next_s())

    async def _establish(self) -> None:
        """One attempt."""
        connection = await connect(self._dial)
        try:
            for interest in list(self._interests):
                await self._attach(interest, connection)
            await connection.ping(self._settings.greeting_timeout_s)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        self.max_payload_bytes = connection.max_payload_bytes
        self.num_connects += 1
        self._connected.set()
        self._tell(True)

    async def _wait_lost(self, connection: Connection) -> None:
        num_missed = 0
        while num_missed < self._settings.max_missed_pings:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.ping_interval_s):
                    await connection.lost.wait()
                    return
            num_missed = 0 if await self.try_ping() else num_missed + 1

    async def try_ping(self) -> bool:
        """Whether a round trip with the server succeeded, within `ping_interval_s`."""
        try:
            await self.connection.ping(self._settings.ping_interval_s)
        except (Disconnected, DeadlineExceeded):
            return False
        return True

    async def close(self) -> None:
        """Ends the present connection, and says so."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._connected.clear()
        self._num_dropped_before += connection.num_dropped
        self._tell(False)
        await connection.close()

    def _tell(self, is_connected: bool) -> None:
        for listener in list(self._listeners):
            try:
                listener(is_connected)
            except Exception:  # the border: one listener must not end the connection of all
                log.exception("a listener of the bus failed")

    def _backoff(self) -> Backoff:
        return Backoff(first_s=FIRST_PAUSE_S, most_s=self._settings.reconnect_pause_s)


def _dial(settings: BusSettings, name: str) -> Dial:
    return Dial(
        urls=tuple(url.strip() for url in settings.url.split(",")),
        name=name,
        greeting_timeout_s=settings.greeting_timeout_s,
        max_unsent_bytes=settings.max_unsent_bytes,
    )
