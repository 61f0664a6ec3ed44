"""Real processes that start in a moment: forked from a server that has imported what takes seconds.

The server has imported torch, NIXL and every kind of process; it has started no thread, opened no agent and
computed nothing, so a child is as one that was started alone.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerContext

from services.child import suspend

_PRELOADED = [
    "workers.process",
    "workers.engine.torch_runner",
    "workers.transfer.nixl_transport",
    "router.service",
    "frontend.service",
]


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


class ForkedProcess:
    """A child that runs `target(*args)`; ended with `close`, whatever state it is in."""

    def __init__(self, name: str, target: Callable[..., object], *args: object) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._process = _context().Process(target=target, args=args, name=name, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def suspend(self) -> None:
        """Until no thread of it runs."""
        suspend(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and until the process is gone."""
        self._process.kill()
        self._process.join()

    def wait(self, limit_s: float) -> int:
        """The exit code.

        Raises:
            AssertionError: it has not ended within `limit_s`.
        """
        self._process.join(limit_s)
        assert self._process.exitcode is not None, f"{self._process.name} still runs after {limit_s} s"
        return self._process.exitcode

    @property
    def is_running(self) -> bool:
        return self._process.exitcode is None

    def close(self) -> None:
        if self.is_running:
            self.kill()
        self._process.close()
