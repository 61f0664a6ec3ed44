"""The followers of a worker, as their leader sees them: started, watched, ended together.

```
 start ─► Hello ─► Load ─► Loaded ─► Allocate ─► Ready ─► steps … ─► the link is hung up ─► they end
                                                              └─ one is gone or silent ─► all are killed
```
A follower cannot outlive its leader: the kernel ends it with the thread that started it.
"""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

from proto.cards import ProcessIdentity
from proto.errors import InternalFault, KvmeshError, from_fault
from services.child import bound_command, wait_child
from workers.ranks.grid import Grid
from workers.ranks.link import Link
from workers.ranks.messages import AnyMessage, Beat, Failed, Hello, Loaded, RankMessage, Ready

END_S = 3.0
"""Of all together: within what a process may take to close."""
REAP_S = 1.0
"""Between the end of a link and that of its process."""
CAUSE_S = 3.0
"""Between an error in mid-step and the end of the link that explains it."""
_LOOKS = 8
"""How often a follower is looked at within the time that it may be silent."""

Answer = TypeVar("Answer", bound=RankMessage)
Kept = TypeVar("Kept")

log = logging.getLogger(__name__)


class _Follower:
    """One of them. `num_beats` counts since its first, before which it is loading the libraries it needs."""

    def __init__(self, rank: int, child: subprocess.Popen[bytes], end: socket.socket, crew: "Crew") -> None:
        self.rank = rank
        self.child = child
        self.num_beats = 0
        self.num_silent_looks = 0
        self.num_seen_beats = 0
        self.link = Link(end, f"rank {rank}", partial(crew.lose, self))

    def beat(self, _: Beat) -> None:
        self.num_beats += 1

    def look(self) -> int:
        """How many looks in a row have found no new beat."""
        is_silent = self.num_beats > 0 and self.num_beats == self.num_seen_beats
        self.num_silent_looks = self.num_silent_looks + 1 if is_silent else 0
        self.num_seen_beats = self.num_beats
        return self.num_silent_looks


class Crew:
    """Made by `open_crew`. A worker of one rank has one without followers. From any thread.

    Units: a follower counts as lost that gives no sign of life for `silent_s`.
    """

    def __init__(self, grid: Grid, silent_s: float) -> None:
        self.grid = grid
        self._silent_s = silent_s
        self._followers: list[_Follower] = []
        self._answers: dict[type[RankMessage], dict[int, RankMessage]] = {}
        self._changed = threading.Condition()
        self._fault: KvmeshError | None = None
        self._listeners: list[Callable[[], None]] = []
        self._ending = threading.Event()
        self._links = ExitStack()
        self._kept = ExitStack()
        self._watch = threading.Thread(target=self._look_after, name="crew", daemon=True)

    @property
    def links(self) -> list[Link]:
        """To the followers, whose ranks count from 1."""
        return [follower.link for follower in self._followers]

    @property
    def fault(self) -> KvmeshError | None:
        """Why no step will ever be computed any more."""
        return self._fault

    @property
    def _is_over(self) -> bool:
        return self._fault is not None or self._ending.is_set()

    def check(self) -> None:
        """Raises: the fault; InternalFault when the crew ends."""
        if self._is_over:
            raise self._fault or InternalFault(reason="the ranks end, as they were told to")

    def on_fault(self, listener: Callable[[], None]) -> None:
        """`listener` is called, from any thread, when there is one."""
        with self._changed:
            self._listeners.append(listener)

    def processes(self) -> list[ProcessIdentity]:
        """Of the followers, by rank. Blocks as `gather`."""
        return [hello.process for hello in self.gather(Hello)]

    def gather(self, kind: type[Answer]) -> list[Answer]:
        """What each follower has said of this kind, last, by rank. Blocks until all have.

        Raises:
            KvmeshError: the fault of one that cannot, or the crew ends.
        """
        with self._changed:
            answers = self._answers.setdefault(kind, {})
            self._changed.wait_for(lambda: self._is_over or len(answers) == len(self._followers))
            self.check()
            return [answers[follower.rank] for follower in self._followers]  # type: ignore[misc]

    def send_all(self, message: AnyMessage) -> None:
        """Raises: InternalFault, as `Link.send`."""
        for follower in self._followers:
            follower.link.send(message)

    def fail(self, fault: KvmeshError) -> None:
        """The first one counts. All followers are killed: who waits for one of them in mid-step is freed."""
        with self._changed:
            if self._fault is not None or self._ending.is_set():
                return
            self._fault = fault
            self._changed.notify_all()
            listeners = list(self._listeners)
        log.error("the ranks end: %s", fault)
        for follower in self._followers:
            follower.child.kill()
        for listener in listeners:
            listener()

    def find_cause(self, error: Exception) -> Exception:
        """Why the leader has met with `error` in mid-step: soon the link to who is gone tells. Blocks."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, CAUSE_S)
            return self._fault or error

    def lose(self, follower: _Follower) -> None:
        """Its link is closed."""
        if self._ending.is_set():
            return
        code = wait_child(follower.child, REAP_S)
        how = "has hung up" if code is None else f"has ended with code {code}"
        self.fail(InternalFault(reason=f"rank {follower.rank} {how}"))

    def keep(self, context: AbstractContextManager[Kept]) -> Kept:
        """Enters a context that is left at the end, after that of the followers."""
        return self._kept.enter_context(context)

    def start(self) -> None:
        """On the thread that lives as long as the process, see `services.child`. Takes milliseconds."""
        self._watch.start()
        for rank in range(1, self.grid.num_ranks):
            ours, theirs = socket.socketpair()
            child = _spawn(theirs)
            follower = _Follower(rank, child, ours, self)
            follower.link.on(Beat, follower.beat)
            follower.link.on(Failed, lambda message: self.fail(from_fault(message.fault)))
            for kind in (Hello, Loaded, Ready):
                follower.link.on(kind, partial(self._note, rank))
            self._links.enter_context(follower.link)
            self._followers.append(follower)

    def end(self) -> None:
        """They end, and are waited for; who does not is killed. Blocks."""
        with self._changed:
            self._ending.set()
            self._changed.notify_all()
        for follower in self._followers:
            follower.link.hang_up()
        deadline_s = time.monotonic() + END_S
        for follower in self._followers:
            if wait_child(follower.child, max(0.0, deadline_s - time.monotonic())) is None:
                follower.child.kill()
            follower.child.wait()
        self._links.close()
        self._watch.join()
        self._kept.close()

    def _note(self, rank: int, message: RankMessage) -> None:
        with self._changed:
            self._answers.setdefault(type(message), {})[rank] = message
            self._changed.notify_all()

    def _look_after(self) -> None:
        """Looks are counted, not seconds: when this process was stopped, nobody was silent meanwhile."""
        while not self._ending.wait(self._silent_s / _LOOKS):
            for follower in self._followers:
                if follower.look() >= _LOOKS:
                    reason = f"rank {follower.rank} gave no sign of life for {self._silent_s:g} s"
                    self.fail(InternalFault(reason=reason))


@asynccontextmanager
async def open_crew(grid: Grid, silent_s: float) -> AsyncIterator[Crew]:
    """The followers that the grid needs run for the body; they are told what to be later."""
    crew = Crew(grid, silent_s)
    if grid.num_ranks == 1:
        yield crew
        return
    try:
        crew.start()
        yield crew
    finally:
        await asyncio.to_thread(crew.end)


async def wait_broken(crew: Crew) -> None:
    """For ever.

    Raises:
        KvmeshError: the crew's fault.
    """
    loop, broken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended before the crew
            loop.call_soon_threadsafe(broken.set)

    crew.on_fault(wake)
    if crew.fault is None:
        await broken.wait()
    crew.check()


def _spawn(end: socket.socket) -> subprocess.Popen[bytes]:
    """A follower that has `end` of its link. What it prints goes where this process prints."""
    with end:
        argv = [sys.executable, "-P", "-m", "workers.ranks.follower", str(end.fileno())]
        return subprocess.Popen(
            bound_command(argv), stdin=subprocess.DEVNULL, pass_fds=[end.fileno()], process_group=0
        )
