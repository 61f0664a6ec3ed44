"""One connection to NATS, from greeting to loss: the only file that imports the client.

The client's own reconnect is not used. It keeps what was unsent and sends it when the server is back,
however late; it gives up for ever on any `-ERR` (nats-py 2.16, `_process_err`); and with a frozen peer it
waits for the old socket to flush before it dials again. Here a connection that was lost stays lost,
`services.bus_link` opens the next one, and there is one path for every cause.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Channel

from proto.errors import DeadlineExceeded, Disconnected, InvalidRequest, InvalidSetting
from services.tasks import heed_cancellation, open_tasks

log = logging.getLogger(__name__)

__all__ = ["Channel", "Connection", "Dial", "OnMessage", "connect"]

CLOSE_LIMIT_S = 1.0
_NEVER_S = 3600  # longer than anything here lasts
MAX_SUBJECT_BYTES = 2048  # the server closes the connection of who sends a control line over 4096

OnMessage = Callable[[str, str, bytes, Mapping[str, str]], None]
"""Subject, reply subject, payload, headers. Must not block or raise."""


class Dial(msgspec.Struct, frozen=True):
    """How to reach the servers. `urls` may carry credentials, so errors name `peer` instead."""

    urls: tuple[str, ...]
    name: str
    greeting_timeout_s: float
    max_unsent_bytes: int

    @property
    def peer(self) -> str:
        return ", ".join(urlsplit(url).netloc.rpartition("@")[2] or url for url in self.urls)


class Connection:
    """A connection that was made once. Owned by one `Link`.

    `lost` is set when the client has noticed the loss; a peer that merely fell silent shows in `ping`.
    """

    def __init__(self, client: Client, dial: Dial, lost: asyncio.Event) -> None:
        self.lost = lost
        self.num_dropped = 0
        self._client = client
        self._dial = dial
        self._channels: set[Channel] = set()

    @property
    def max_payload_bytes(self) -> int:
        return self._client.max_payload

    @property
    def is_usable(self) -> bool:
        return self._client.is_connected and not self.lost.is_set()

    async def publish(self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None) -> None:
        """Hands the message to the socket's writer; never waits for the server.

        Raises:
            Disconnected: no connection, or the server has stopped to take bytes.
            InvalidRequest: not a subject.
        """
        if len(subject) + len(reply) > MAX_SUBJECT_BYTES:
            raise InvalidRequest(field="subject", reason=f"over {MAX_SUBJECT_BYTES} bytes")
        if not self.is_usable or self._client.pending_data_size > self._dial.max_unsent_bytes:
            raise Disconnected(peer=self._dial.peer)
        try:
            await self._client.publish(subject, payload, reply=reply, headers=headers)
        except errors.BadSubjectError as error:
            raise InvalidRequest(field="subject", reason=f"{subject!r} is not a subject") from error
        except (errors.Error, OSError) as error:
            raise Disconnected(peer=self._dial.peer) from error

    async def subscribe(
        self, subject: str, queue: str, on_message: OnMessage, max_messages: int, max_bytes: int
    ) -> Channel:
        """Messages on `subject` to `on_message`; the server knows once a `ping` has come back."""

        async def deliver(message: Msg) -> None:
            on_message(message.subject, message.reply, message.data, message.headers or {})

        try:
            channel = await self._client.subscribe(
                subject,
                queue=queue,
                cb=deliver,
                pending_msgs_limit=max_messages,
                pending_bytes_limit=max_bytes,
            )
        except errors.BadSubjectError as error:
            raise InvalidRequest(field="subject", reason=f"{subject!r} is not a subject") from error
        except (errors.Error, OSError) as error:
            raise Disconnected(peer=self._dial.peer) from error
        self._channels.add(channel)
        return channel

    async def unsubscribe(self, channel: Channel) -> None:
        """No new messages; those already here are still handed over, unless the connection is lost.

        The client's `drain` pings past its own UNSUB (see `ping`) and so loses what comes in between; hence
        the UNSUB alone first, through a method that the client keeps to itself.
        """
        self._channels.discard(channel)
        try:
            await self._client._send_unsubscribe(channel._id)
            await self.ping(CLOSE_LIMIT_S)
        except (Disconnected, DeadlineExceeded):
            log.debug("closed a subscription without the server")
        finally:
            with suppress(errors.Error, OSError):
                await channel.unsubscribe()

    async def ping(self, timeout_s: float) -> None:
        """A round trip: the server has handled all that was sent before, and all it sent until then is here.

        Two pings, because the client writes a ping past what it has still to send (nats-py 2.16,
        `_send_ping`): once the first is back, what was waiting has left, and the second goes behind it.

        Raises:
            Disconnected: no connection.
            DeadlineExceeded: no answer within `timeout_s`.
        """
        if not self.is_usable:
            raise Disconnected(peer=self._dial.peer)
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(2):
                    with heed_cancellation():
                        await self._ping_once()
        except TimeoutError as error:
            raise DeadlineExceeded(what=f"a ping of {self._dial.peer}", limit_s=timeout_s) from error
        except (errors.Error, OSError) as error:
            raise Disconnected(peer=self._dial.peer) from error

    async def _ping_once(self) -> None:
        """In place of the client's `rtt`, which cancels what waits for a pong that is late: the pong ends the
        client's reading then, and nothing is heard any more though all seems well (nats-py 2.16)."""
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._client._send_ping(pong)
        await asyncio.shield(pong)

    async def close(self) -> None:
        """Ends the connection; bounded, also when the peer is frozen with our bytes unread."""
        for channel in self._channels:
            with suppress(errors.Error, OSError):
                await channel.unsubscribe()
        self._channels.clear()
        await _close_client(self._client)


async def connect(dial: Dial) -> Connection:
    """A connection to one of the servers.

    Raises:
        Disconnected: none is there.
        InvalidSetting: a server refuses us, or what listens there is not NATS.
    """
    lost = asyncio.Event()
    client = Client()
    connection = Connection(client, dial, lost)
    refusals: list[Exception] = []

    async def on_error(error: Exception) -> None:
        if isinstance(error, errors.SlowConsumerError):
            connection.num_dropped += 1
        elif client.is_connecting:  # the socket was opened, the greeting failed
            refusals.append(error)

    async def on_loss() -> None:
        lost.set()

    try:
        with heed_cancellation():
            await client.connect(
                list(dial.urls),
                name=dial.name,
                error_cb=on_error,
                disconnected_cb=on_loss,
                closed_cb=on_loss,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                reconnect_to_server_handler=lambda servers, info: (None, _NEVER_S),
                connect_timeout=dial.greeting_timeout_s,  # type: ignore[arg-type]
                ping_interval=_NEVER_S,  # `services.bus_link` pings, so that one judge says what is lost
                pending_size=2 * dial.max_unsent_bytes + 2**26,  # never reached: `publish` refuses before
            )
    except errors.NoServersError as error:
        await _close_client(client)
        raise _refusal(dial, refusals) from error
    except errors.Error as error:  # nothing was opened: the URL is wrong
        raise InvalidSetting(setting="url", reason=f"{dial.peer or 'empty'}: {error}") from error
    except asyncio.CancelledError:
        await _close_client(client)
        raise
    return connection


def _refusal(dial: Dial, refusals: list[Exception]) -> Disconnected | InvalidSetting:
    if not refusals:
        return Disconnected(peer=dial.peer)
    if "authorization" in str(refusals[-1]).lower():
        return InvalidSetting(setting="url", reason=f"{dial.peer} refuses these credentials")
    return InvalidSetting(setting="url", reason=f"{dial.peer} takes connections but does not speak NATS")


async def _close_client(client: Client) -> None:
    """Closes within `CLOSE_LIMIT_S`, or gives up.

    In a task of its own: the client cancels its reconnect while both wait for the same socket to close, which
    cancels the future they share, and so whoever called `close` (nats-py 2.16, `_attempt_reconnect`).
    """
    async with open_tasks() as tasks:
        closing = tasks.create_task(_close_quietly(client), name="nats-close")
        limit_s = CLOSE_LIMIT_S
        while not (await asyncio.wait({closing}, timeout=limit_s))[0]:
            closing.cancel()  # more than once, because `close` swallows a cancellation
            limit_s = 0.05


async def _close_quietly(client: Client) -> None:
    """A lost connection ends in whatever way it does: in uvloop by `RuntimeError` while bytes are unsent."""
    with suppress(errors.Error, OSError, TimeoutError, RuntimeError):
        await client.close()
