"""The process of a `trial`, seen from outside. Its calls block: for a thread, but for the start.

It is started by `subprocess`, which shares the memory of this process until the other program runs. The event
loop would copy the page tables of a pool of KV, and all pages that are pinned for transfer.
"""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from services.child import bound_command
from services.grammars.trial import LENGTH_BYTES

_MODULE = "services.grammars.trial"


class TrialChild:
    """Made by `start_trial_child`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait_ready(self) -> bool:
        """Whether it is ready to be asked; it may have ended instead."""
        return self._read() is not None

    def ask(self, message: bytes) -> str | None:
        """What it says to a message; None when it has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(len(message).to_bytes(LENGTH_BYTES, "big") + message)
            self._process.stdin.flush()
        answer = self._read()
        return None if answer is None else answer.decode()

    def wait_ended(self, limit_s: float) -> int | None:
        """Its exit code (negative: the signal), None when it has none within `limit_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None

    def kill(self) -> None:
        """Whoever waits for its word hears that it has ended. Does not block."""
        self._process.kill()

    def end(self) -> None:
        """It is gone, and so are its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what it never read
                    pipe.close()

    def _read(self) -> bytes | None:
        assert self._process.stdout is not None
        length = self._process.stdout.read(LENGTH_BYTES)
        if len(length) < LENGTH_BYTES:
            return None
        num_bytes = int.from_bytes(length, "big")
        answer = self._process.stdout.read(num_bytes)
        return answer if len(answer) == num_bytes else None


def start_trial_child(cpu_s: int, vocabulary: Sequence[str]) -> TrialChild:
    """On the thread that lives as long as this process, see `services.child`. Takes a millisecond.

    Args: as those of the process itself.
    """
    process = subprocess.Popen(
        bound_command([sys.executable, "-P", "-m", _MODULE, str(cpu_s), *vocabulary]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return TrialChild(process)
