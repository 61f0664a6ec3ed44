"""The one shape of every process: it runs until told to end, drains to a deadline, says how it ended.

```
run_process(main)
   main opens outermost first (bus, directory, engine) and registers last
   main waits for the shutdown event              SIGTERM or SIGINT sets it
   main unregisters first, stops admitting, drains to its deadline, closes by leaving its contexts
```
The order is that of the code: what `main` enters it leaves in reverse. `main` keeps its own deadline for
draining; it is cut short (cancelled) at a second signal, or when that deadline and a margin have passed. A
third signal ends the process as the system does.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import uvloop

from proto.errors import InvalidSetting, KvmeshError
from services.environment import check_packages
from services.tasks import only_error

CLOSE_MARGIN_S = 5.0
SWITCH_S = 0.001
"""How long a thread that wants the interpreter lets another one have it: with Python's own 5 ms an event loop
beside a thread that computes is late by that much each time it wakes, at several processes of one request."""

EXIT_FAILED = 1
EXIT_WRONG_SETTING = 2
EXIT_CUT_SHORT = 130

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
log = logging.getLogger(__name__)

Main = Callable[[asyncio.Event], Awaitable[None]]
"""The life of a process: returns once it has ended in good order after the event was set."""


def run_process(main: Main, *, drain_limit_s: float | None) -> int:
    """Runs `main` on a loop of its own; the exit code. Belongs on the main thread.

    Without a limit there is nothing to drain: the first signal cuts `main` short.

    An error of our tree is one line on stderr. Anything else is a bug, and comes out with its traceback.
    """
    try:
        check_packages()
        sys.setswitchinterval(SWITCH_S)
        return uvloop.run(_live(main, drain_limit_s))
    except KvmeshError as error:
        return _say(error)
    except BaseExceptionGroup as group:
        lone = only_error(group)
        if isinstance(lone, KvmeshError):
            return _say(lone)
        raise


def end_now(code: int) -> NoReturn:
    """Everything is closed; what the interpreter would do yet, freeing torch and the pool, takes seconds."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def stop_collecting_what_stands() -> None:
    """What lives now lives as long as the process: the garbage collector need not look at it again.

    Belongs in a process that is up. Else each full round holds up the loop for all that was made till then.
    """
    gc.freeze()


def _say(error: KvmeshError) -> int:
    print(f"kvmesh: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the process's last words
    return EXIT_WRONG_SETTING if isinstance(error, InvalidSetting) else EXIT_FAILED


async def _live(main: Main, drain_limit_s: float | None) -> int:
    ending = _Ending(drain_limit_s)
    with ending.heard():
        try:
            await main(ending.shutdown)
        except asyncio.CancelledError:
            if not ending.is_cut_short:
                raise
            return EXIT_CUT_SHORT
    return EXIT_CUT_SHORT if ending.is_cut_short else 0


class _Ending:
    """What the signals of one life have done so far."""

    def __init__(self, drain_limit_s: float | None) -> None:
        self.shutdown = asyncio.Event()
        self.is_cut_short = False
        self._drain_limit_s = drain_limit_s
        self._timer: asyncio.TimerHandle | None = None
        self._life: asyncio.Task[object] | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Signals come here for the time of the body, which is what may be cut short."""
        loop = asyncio.get_running_loop()
        self._life = asyncio.current_task()
        for signum in _SIGNALS:
            loop.add_signal_handler(signum, self._on_signal, signum)
        try:
            yield
        finally:
            for signum in _SIGNALS:
                loop.remove_signal_handler(signum)
            if self._timer is not None:
                self._timer.cancel()

    def _on_signal(self, signum: signal.Signals) -> None:
        if self.shutdown.is_set():
            self._cut_short(f"a second {signum.name}")
            return
        self.shutdown.set()
        if self._drain_limit_s is None:
            self._cut_short(signum.name)
            return
        log.info("%s: ending", signum.name)
        limit_s = self._drain_limit_s + CLOSE_MARGIN_S
        reason = f"not done after {limit_s:g} s"
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._cut_short, reason)

    def _cut_short(self, reason: str) -> None:
        log.warning("ending at once: %s", reason)
        self.is_cut_short = True
        for signum in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(signum)
            signal.signal(signum, signal.SIG_DFL)
        if self._life is not None:
            self._life.cancel()
