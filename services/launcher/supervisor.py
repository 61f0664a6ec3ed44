"""Keeps children alive while the mesh is up, and ends them all, in order and in time, when it goes down.

```
 spawned ──ready──► up ──ended──► reaped ──back-off──► spawned …
    └────ended───► reaped, and the launch has failed
```
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import Protocol

from services.backoff import Backoff
from services.child import wait_child_ended
from services.launcher.child import Child, how_it_ended
from services.launcher.child_log import bound_log

# Units: seconds after the first signal at which a kind's turn ends and the next kind's begins. Planners go
# first, so that no role changes any more, then frontends, so that no new work comes; servers last, so that
# everybody can say good-bye.
END_ORDER = (("planner", 0.5), ("frontend", 1.5), ("worker", 2.8), ("router", 3.3), ("server", 4.3))
RESTART_FIRST_S = 0.5
RESTART_MOST_S = 10.0
STEADY_S = 30.0
LOG_LIMIT_BYTES = 16 * 2**20
LOG_CHECK_S = 5.0
LAST_REAP_S = 0.4


class Witness(Protocol):
    """Hears what happens to the children."""

    def spawned(self, child: Child) -> None: ...

    def reaped(self, child: Child, pid: int) -> None:
        """Called once for every pid: its end is proven, and nothing will ever be written by it again."""
        ...

    def say(self, line: str) -> None: ...


class Supervisor:
    """The children of one launcher. `tasks` owns one task per child."""

    def __init__(self, tasks: asyncio.TaskGroup, witness: Witness) -> None:
        self._tasks = tasks
        self._witness = witness
        self._children: list[Child] = []
        self._was_ready: set[str] = set()
        self._is_ending = asyncio.Event()
        self._watchers: dict[str, asyncio.Task[None]] = {}

    @property
    def children(self) -> Sequence[Child]:
        return self._children

    def start(self, child: Child) -> None:
        """Spawns `child` and reaps it whenever it ends; once it was ready it is also started again."""
        child.spawn()
        self._children.append(child)
        self._witness.spawned(child)
        name = f"keep {child.name}"
        self._watchers[child.name] = self._tasks.create_task(self._keep(child), name=name)

    async def wait_ready(self, child: Child, limit_s: float) -> None:
        """Raises as `Child.wait_ready`."""
        await child.wait_ready(limit_s)
        self._was_ready.add(child.name)

    async def _keep(self, child: Child) -> None:
        backoff = Backoff(RESTART_FIRST_S, RESTART_MOST_S)
        while await self._reap(child, backoff):
            pause_s = backoff.next_s()
            ended = how_it_ended(child.process.returncode)
            self._witness.say(
                f"{child.name} {ended}; starting it again in {pause_s:.1f} s (log: {child.log})"
            )
            if await self._is_ending_within(pause_s):
                return
            child.spawn()
            self._witness.spawned(child)
            self._witness.say(f"{child.name} was started again as process {child.process.pid}")

    async def _reap(self, child: Child, backoff: Backoff) -> bool:
        """Waits for the end of this life; whether there shall be another."""
        began = time.monotonic()
        pid = child.process.pid
        await wait_child_ended(child.process)
        _kill_group(pid)
        self._witness.reaped(child, pid)
        if time.monotonic() - began > STEADY_S:
            backoff.reset()
        return child.name in self._was_ready and not self._is_ending.is_set()

    async def _is_ending_within(self, limit_s: float) -> bool:
        try:
            await asyncio.wait_for(self._is_ending.wait(), limit_s)
        except TimeoutError:
            return self._is_ending.is_set()
        return True

    async def bound_logs(self) -> None:
        """Keeps the logs of the children within `LOG_LIMIT_BYTES` each, until the end begins."""
        while not await self._is_ending_within(LOG_CHECK_S):
            for child in self._children:
                if child.kind != "server":  # these rotate their own
                    await asyncio.to_thread(bound_log, child.log, LOG_LIMIT_BYTES)

    async def end(self) -> None:
        """Ends and reaps every child soon after the last bound of `END_ORDER`, planners first, servers last.

        Cancel: what is left is killed, and reaped by the tasks of this supervisor.
        """
        self._is_ending.set()
        began = time.monotonic()
        try:
            for kind, turn_ends_s in END_ORDER:
                if kind == "server":
                    self._kill([child for child in self._children if child.kind != "server"])
                group = [child for child in self._children if child.kind == kind]
                for child in group:
                    _ask_to_end(child)
                await self._wait_reaped(group, began + turn_ends_s - time.monotonic())
        finally:
            self.kill_all()
        await self._wait_reaped(self._children, LAST_REAP_S)

    def kill_all(self) -> None:
        """Ends every child at once."""
        self._is_ending.set()
        self._kill(self._children)

    def _kill(self, children: Sequence[Child]) -> None:
        for child in children:
            child.process.kill()

    async def _wait_reaped(self, children: Sequence[Child], limit_s: float) -> None:
        watchers = [self._watchers[child.name] for child in children]
        if watchers:
            await asyncio.wait(watchers, timeout=max(0.0, limit_s))


def _ask_to_end(child: Child) -> None:
    child.process.send_signal(signal.SIGTERM)
    child.process.send_signal(signal.SIGCONT)  # a stopped one hears it too


def _kill_group(pid: int) -> None:
    """Each child leads a group of its own: what it started ends with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
