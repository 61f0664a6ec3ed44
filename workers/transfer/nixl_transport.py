"""A pool's way in and out over NIXL: a line, and further ones for peers whose connection is stuck.

```
 first line   ── peer a (a write does not end: only watched) ── peer b
 second line  ── peer a, met anew
```

A connection over which nothing ends any more, though both processes are well, may stay so for ever, and
nothing can call back what was posted over it: to close it would make that seem to have failed, and its bytes
might still land. So it is left as it is, and the peer is met anew from another agent, which shares nothing
with the first but the pool. Peers know nothing of it: they are told by the same notices.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from proto.cards import RankAgent
from proto.errors import InternalFault, NothingPosted, PeerGone
from proto.layout import PoolLayout
from workers.transfer.copy_plan import Copies
from workers.transfer.nixl_agent import TransferState
from workers.transfer.nixl_line import NixlLine
from workers.transfer.shared_post import SharedPost
from workers.transfer.transfers import Operation

MAX_LINES: Final = 3
"""A peer with something stuck on each is as one that cannot be reached."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Way:
    """A peer on a line. `num_moving` posts to it have not been released."""

    line: NixlLine
    agent: str
    metadata: bytes
    num_moving: int = 0


class Posted(NamedTuple):
    """What `try_post` started."""

    way: _Way
    post: SharedPost


class NixlTransport:
    """The `KvTransport` of a pool that NIXL reaches. Methods are as those of `NixlAgent`."""

    def __init__(self, agent: str, pool: PoolLayout, parameters: Mapping[str, str] | None = None) -> None:
        self._agent = agent
        self._pool = pool
        self._parameters = parameters
        self._wake: Callable[[], None] = lambda: None
        self._lines = [NixlLine(agent, pool, parameters)]
        self._ways: dict[str, _Way] = {}
        self._former: list[_Way] = []

    def open(self, wake: Callable[[], None]) -> RankAgent:
        """See `NixlAgent` and `KvTransport`."""
        self._wake = wake
        return self._lines[0].open(wake)

    def close(self) -> None:
        """See `NixlAgent`; when nothing moves any more."""
        for line in self._lines:
            line.close()

    def add_peer(self, agent: str, metadata: bytes) -> None:
        """See `NixlAgent`.

        Raises:
            PeerGone: it cannot be reached, or what was posted to it is stuck on every line.
        """
        line = self._free_line(agent)
        if line is None:
            raise PeerGone(peer=agent, reason="what was posted to it before has not ended")
        line.add_peer(agent, metadata)
        self._ways[agent] = _Way(line, agent, metadata)

    def remove_peer(self, agent: str) -> None:
        """See `NixlAgent`. What is still moving goes on."""
        way = self._ways.pop(agent, None)
        if way is None:
            raise PeerGone(peer=agent, reason="it has not been met")
        self._leave(way)

    def note_stuck(self, posted: Posted) -> None:
        """It does not end: from now on its peer is reached over another line, if there is one to be had, and
        if it is not already."""
        way = posted.way
        if self._ways.get(way.agent) is not way:
            return
        line = self._free_line(way.agent)
        if line is None:
            log.warning("%s cannot be met anew", way.agent)
            return
        try:
            line.add_peer(way.agent, way.metadata)
        except PeerGone as error:
            log.warning("%s cannot be met anew", way.agent, extra={"reason": str(error)})
            return
        self._ways[way.agent] = _Way(line, way.agent, way.metadata)
        self._former.append(way)
        log.warning("met %s anew", way.agent, extra={"line": self._lines.index(line)})

    def _free_line(self, agent: str) -> NixlLine | None:
        """One on which the peer is not."""
        taken = [way.line for way in self._former if way.agent == agent]
        if agent in self._ways:
            taken.append(self._ways[agent].line)
        free = [line for line in self._lines if line not in taken]
        return free[0] if free else self._try_open()

    def _try_open(self) -> NixlLine | None:
        number = len(self._lines)
        if number == MAX_LINES:
            return None
        line = NixlLine(f"{self._agent}+{number}", self._pool, self._parameters)
        try:
            line.open(self._wake)
        except InternalFault as error:  # as where there is one port to listen on, or no link at this moment
            log.warning("there can be no further agent", extra={"reason": str(error)})
            return None
        self._lines.append(line)
        return line

    def _leave(self, way: _Way) -> None:
        """At once, or when the last of its posts is released.

        Raises:
            PeerGone: it was gone already.
        """
        if way.num_moving:
            self._former.append(way)
        else:
            way.line.remove_peer(way.agent)

    def try_post(self, operation: Operation, agent: str, copies: Copies, remote_device: str) -> Posted:
        """Start moving `copies`; for `check` and `release`. There is always room.

        Raises:
            NothingPosted: the peer is unknown, or nothing can be sent to it any more.
            PeerGone: it failed in the midst; some of it may land.
        """
        way = self._way(agent)
        posted = Posted(way, way.line.post(operation, agent, copies, remote_device))
        way.num_moving += 1
        return posted

    def _way(self, agent: str) -> _Way:
        way = self._ways.get(agent)
        if way is None:
            raise NothingPosted(peer=agent, reason="it has not been met")
        return way

    def check(self, agent: str, posted: Posted) -> TransferState:
        """See `NixlLine`.

        Raises:
            PeerGone: it failed.
        """
        return posted.way.line.check(posted.post)

    def release(self, posted: Posted) -> None:
        """See `KvTransport`. A former way that was kept for it alone ends."""
        way = posted.way
        way.num_moving -= 1
        if not way.num_moving and way in self._former:
            self._former.remove(way)
            try:
                way.line.remove_peer(way.agent)
            except PeerGone as error:
                log.info("a former peer was gone already", extra={"reason": str(error)})

    def notify(self, agent: str, notice: bytes) -> None:
        """See `NixlAgent`."""
        self._way(agent).line.notify(agent, notice)

    def take_notices(self) -> list[bytes]:
        """See `NixlAgent`."""
        return [notice for line in self._lines for notice in line.take_notices()]
