"""The channel between the leader and one follower: framed messages over a pair of sockets.

```
 length, 4 bytes big-endian | message, msgpack
```
"""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

from proto.codec import encode
from proto.errors import InternalFault
from workers.ranks.messages import MESSAGES, AnyMessage, RankMessage

_LENGTH_BYTES = 4
_MAX_MESSAGE_BYTES = 256 * 2**20

Message = TypeVar("Message", bound=RankMessage)

log = logging.getLogger(__name__)


class Link:
    """One end. While its context is open, a thread reads what the other end sends.

    Each message goes to the handler of its type, in that thread and in the order of sending: a handler hands
    over and returns. It must be there before the first such message can come. `on_closed` is called in that
    thread too, once, when there is nothing more to come.
    """

    def __init__(self, end: socket.socket, name: str, on_closed: Callable[[], None]) -> None:
        self.name = name
        self._end = end
        self._on_closed = on_closed
        self._handlers: dict[type[RankMessage], Callable[[Any], None]] = {}
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read_all, name=f"link to {name}", daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
        self._reader.join()
        self._end.close()

    def on(self, kind: type[Message], handler: Callable[[Message], None]) -> None:
        """From now on `handler` gets the messages of this type."""
        self._handlers[kind] = handler

    def send(self, message: AnyMessage) -> None:
        """From any thread. Blocks while the other end does not read, which its end puts an end to.

        Raises:
            InternalFault: the other end is closed.
        """
        payload = encode(message, _MAX_MESSAGE_BYTES)
        try:
            with self._sending:
                self._end.sendall(len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)
        except OSError as error:
            raise InternalFault(reason=f"{self.name} has hung up") from error

    def hang_up(self) -> None:
        """Nothing more is sent or read, here or there; whoever sends is freed."""
        with suppress(OSError):  # the other end was quicker
            self._end.shutdown(socket.SHUT_RDWR)

    def _read_all(self) -> None:
        try:
            with self._end.makefile("rb") as source:
                while (payload := _read(source)) is not None:
                    message = MESSAGES.decode(payload)
                    self._handlers[type(message)](message)
        finally:
            self.hang_up()
            self._on_closed()


def _read(source: BinaryIO) -> bytes | None:
    """None at the end, also one in mid-message."""
    try:
        length = source.read(_LENGTH_BYTES)
        num_bytes = int.from_bytes(length, "big")
        payload = source.read(num_bytes) if len(length) == _LENGTH_BYTES else b""
    except OSError:
        return None
    return payload if payload and len(payload) == num_bytes else None
