"""Connections over TCP that are as good as dead, though nobody says so: what comes is never read.

As of a link that is gone: each end waits for the other, for minutes. What was sent is kept, so that all of it
arrives when the process hears again.
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.workers.forked import ForkedProcess

_NEVER_SO_MANY_BYTES = 2**30


def connections() -> Iterator[socket.socket]:
    """Of this process, over TCP."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as found:
            if found.family == socket.AF_INET and found.getpeername():
                yield found


def deafen(spared_ports: frozenset[int] = frozenset()) -> None:
    """Those that there are now, but to and from `spared_ports`. What is connected later is well."""
    for found in connections():
        if not spared_ports & {found.getsockname()[1], found.getpeername()[1]}:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _NEVER_SO_MANY_BYTES)


def hear_again() -> None:
    for found in connections():
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def deafen_when_told(spared_ports: frozenset[int]) -> None:
    """In a process that is to become a worker: see `make_deaf` and `make_hear`."""
    signal.signal(signal.SIGUSR1, lambda _, __: deafen(spared_ports))
    signal.signal(signal.SIGUSR2, lambda _, __: hear_again())


def make_deaf(worker: ForkedProcess) -> None:
    os.kill(worker.pid, signal.SIGUSR1)


def make_hear(worker: ForkedProcess) -> None:
    os.kill(worker.pid, signal.SIGUSR2)
