"""An answer on the bus: numbered messages to the client's reply subject, until it is no longer heard there.

```
 whole:   [sign of life ...]  JSON                                        end: done
 stream:  JSON lines | sign of life ...                  empty message    end: done
 failed:  ...                 OpenAI's error envelope    error headers    end: error   (cancelled: so too)
```

Each message has `x-request-id`, its number in `Kvmesh-Seq` (a sign of life that of the next, since nothing is
lost with it), and a reply subject on which the server says that nobody listens and the client may say that it
wants no more. The last one, and no other, has `Kvmesh-End`.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from frontend.answer import Reply
from frontend.events import to_lines
from frontend.request_id import REQUEST_ID_HEADER
from frontend.side_door.lines import cut_lines
from proto.errors import DeadlineExceeded, Disconnected, KvmeshError
from services.backoff import Backoff
from services.bus import Bus
from services.faults import error_json, retry_after_s, said_of
from services.micro import ERROR_CODE_HEADER, ERROR_HEADER

log = logging.getLogger(__name__)

END_HEADER = "Kvmesh-End"
SEQUENCE_HEADER = "Kvmesh-Seq"
RETRY_HEADER = "Retry-After"
SIGN_OF_LIFE = b"\n"  # not empty: many clients take an empty message for the last one

_HEADERS_BYTES = 1024  # what is left for headers in a message
_RETURN_LIMIT_S = 15.0  # for both ends to find NATS again after a loss
_SAID_CHARS = 512


class BusReply(Reply):
    """`subject` is the client's, `control` ours. `has_beats`: the client bears signs of life.

    `error_code` is that of the error that it ended with, if any.
    """

    def __init__(
        self, bus: Bus, subject: str, control: str, request_id: str, arrived_s: float, *, has_beats: bool
    ) -> None:
        super().__init__(request_id, arrived_s)
        self.error_code = ""
        self._bus = bus
        self._subject = subject
        self._control = control
        self._has_beats = has_beats
        self._num_sent = 0
        self._sent_s = time.monotonic()
        self._left = asyncio.Event()
        self._is_cancelled = False
        self._has_lost_link = False
        self._is_unheard = False
        self._has_ended = False
        self._is_given_up = False

    # What happens to it.

    @property
    def is_cancelled(self) -> bool:
        """Whether it was, and its last word has not been said."""
        return self._is_cancelled and not self._has_ended

    def cancel(self) -> None:
        """Somebody wants no more of it, who need not be the one that listens."""
        self._is_cancelled = True
        self._left.set()

    def leave(self) -> None:
        """Nobody is to hear more."""
        self._left.set()

    def apply_unheard(self) -> None:
        """Nobody listens on the client's subject. After a loss of the bus it may be back in a moment."""
        self._is_unheard = True
        if not self._has_lost_link:
            self._left.set()

    def apply_link(self, is_connected: bool) -> None:
        if not is_connected:
            self._has_lost_link = True

    # What goes out.

    async def start_stream(self) -> None:
        self._has_beats = True

    async def send_events(self, events: bytes) -> None:
        """
        Raises:
            Disconnected: the bus is or was out of reach, so that messages may be lost.
            PayloadTooLarge: one event is more than a message carries.
        """
        if self._has_lost_link:
            raise Disconnected(peer=self._bus.peer)
        for lines in cut_lines(to_lines(events), self._bus.max_payload_bytes - _HEADERS_BYTES):
            await self._send(lines)

    async def end_stream(self, events: bytes) -> None:
        """Raises as `send_events`."""
        if events or self._has_lost_link:
            await self.send_events(events)
        await self._send_last(b"", {END_HEADER: "done"})

    async def send_whole(self, body: bytes) -> None:
        await self._send_last(body, {END_HEADER: "done"})

    async def refuse(self, error: KvmeshError) -> None:
        await self.break_off(error)

    async def break_off(self, error: KvmeshError) -> None:
        said = said_of(error).encode("ascii", "replace").decode()[:_SAID_CHARS]
        headers = {END_HEADER: "error", ERROR_HEADER: said, ERROR_CODE_HEADER: str(error.status)}
        wait_s = retry_after_s(error)
        if wait_s is not None:
            headers[RETRY_HEADER] = str(wait_s)
        self.error_code = error.code
        if self._is_given_up:
            return
        try:
            await self._send_last(error_json(error), headers)
        except KvmeshError as fault:
            log.info("a client cannot be told how its request failed: %s", fault)

    async def send_sign_of_life(self, quiet_s: float) -> None:
        """After `quiet_s` without a word: so that each end notices when the other is gone."""
        is_due = self._has_beats and not self._has_ended and not self._has_lost_link
        if is_due and time.monotonic() - self._sent_s >= quiet_s:
            await self._publish(self._num_sent, SIGN_OF_LIFE, {})

    async def wait_left(self) -> None:
        await self._left.wait()

    async def _send(self, payload: bytes) -> None:
        number, self._num_sent = self._num_sent, self._num_sent + 1
        await self._publish(number, payload, {})

    async def _publish(self, number: int, payload: bytes, headers: Mapping[str, str]) -> None:
        self._sent_s = time.monotonic()
        own = {REQUEST_ID_HEADER: self.request_id, SEQUENCE_HEADER: str(number), **headers}
        await self._bus.publish(self._subject, payload, reply=self._control, headers=own)
        self.has_started = True

    async def _send_last(self, payload: bytes, headers: Mapping[str, str]) -> None:
        """After a loss of the bus, again until the client is there to hear it, within a bound.

        Raises:
            DeadlineExceeded: it is not.
            PayloadTooLarge: nothing was sent.
        """
        self._has_ended = True
        backoff = Backoff(first_s=0.05, most_s=1.0)
        try:
            async with asyncio.timeout(_RETURN_LIMIT_S):
                while True:
                    if await self._try_last(payload, headers):
                        return
                    await asyncio.sleep(backoff.next_s())
        except TimeoutError as error:
            self._is_given_up = True
            raise DeadlineExceeded(what="the last message of an answer", limit_s=_RETURN_LIMIT_S) from error

    async def _try_last(self, payload: bytes, headers: Mapping[str, str]) -> bool:
        """Whether it has left and, as far as that can be known, was heard."""
        try:
            await self._bus.wait_connected(_RETURN_LIMIT_S)
            self._is_unheard = False
            await self._publish(self._num_sent, payload, headers)
            if self._has_lost_link:
                await self._bus.flush(_RETURN_LIMIT_S)
        except Disconnected:
            self._has_lost_link = True
            return False
        return not (self._has_lost_link and self._is_unheard)
