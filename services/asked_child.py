"""A child process that answers questions, one at a time, over its pipes.

It is started by `subprocess`, which shares the memory of this process until the other program runs. The
event loop would copy the page tables of a pool of KV, and all pages that are pinned for transfer.
"""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from services.child import bound_command
from services.pipe_messages import try_read_message, write_message


class AskedChild:
    """Made by `start_asked_child`. Its calls block, for a thread, but for `kill`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def try_ask(self, message: bytes) -> bytes | None:
        """What it says to a message; None when it has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            write_message(self._process.stdin, message)
        return self.try_hear()

    def try_hear(self) -> bytes | None:
        """What it says next, asked or not; None when it has ended."""
        assert self._process.stdout is not None
        return try_read_message(self._process.stdout)

    def wait_ended(self, limit_s: float) -> int | None:
        """Its exit code (negative: the signal), None when it has none within `limit_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None

    def kill(self) -> None:
        """Whoever waits for its word hears that it has ended. From any thread; does not block."""
        self._process.kill()

    def end(self) -> None:
        """It is gone, and so are its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what it never read
                    pipe.close()


def start_asked_child(module: str, arguments: Sequence[str] = (), *, niceness: int = 0) -> AskedChild:
    """On a thread that lives as long as this process, see `services.child`. Takes a millisecond.

    Args:
        module: its program, run with `arguments`. What it prints on stderr is lost.
        niceness: how much it yields to others, from before it imports anything.
    """
    process = subprocess.Popen(
        bound_command([sys.executable, "-P", "-m", module, *arguments], niceness=niceness),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    return AskedChild(process)
