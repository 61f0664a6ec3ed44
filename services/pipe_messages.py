"""Messages over a pipe, each after its length.

A file of its own, since a child that only reads and writes them starts twice as fast without asyncio.
"""

from typing import IO

_LENGTH_BYTES = 4


def try_read_message(source: IO[bytes]) -> bytes | None:
    """The next message; None when nobody sends any more."""
    length = source.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    num_bytes = int.from_bytes(length, "big")
    message = source.read(num_bytes)
    return message if len(message) == num_bytes else None


def write_message(sink: IO[bytes], message: bytes) -> None:
    """
    Raises:
        BrokenPipeError: nobody reads any more.
    """
    sink.write(len(message).to_bytes(_LENGTH_BYTES, "big"))
    sink.write(message)
    sink.flush()
