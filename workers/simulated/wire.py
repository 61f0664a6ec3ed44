"""KV from one simulated worker to another of the same process: no bytes, only the time that they would take.

Each worker has one link to the others, which its transfers leave one after the other.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from proto.cards import AgentCard
from proto.codec import decode
from proto.errors import KvmeshError, PeerGone
from proto.jobs import Landing
from workers.transfer.transfers import OnDone, OnLanding, OnMoved, Transfer

BITS = 8


class Wire:
    """The ends of all workers of a process, by the names of their agents.

    Units: `bytes_per_s` that leave one end; `latency_s` seconds a transfer takes beside them.
    """

    def __init__(self, gbit_per_s: float, latency_s: float) -> None:
        self.bytes_per_s = gbit_per_s * 1e9 / BITS
        self.latency_s = latency_s
        self._ends: dict[str, WireEnd] = {}

    @contextmanager
    def end(self, agent: str, on_landing: OnLanding, on_moved: OnMoved) -> Iterator["WireEnd"]:
        """The end of one worker, for the time of the body."""
        end = self._ends[agent] = WireEnd(self, on_landing, on_moved)
        try:
            yield end
        finally:
            del self._ends[agent]
            end.close()

    def reaches(self, card: AgentCard) -> bool:
        """Whether KV can move to this worker: not to one of another process."""
        return all(rank.agent in self._ends for rank in card.ranks)

    def find(self, agent: str) -> "WireEnd":
        """
        Raises:
            PeerGone: no worker of this process, or none any more.
        """
        end = self._ends.get(agent)
        if end is None:
            raise PeerGone(peer=agent, reason="it is not simulated in this process")
        return end


class WireEnd:
    """The `Transfers` of one worker. Belongs to the event loop, on which it calls back."""

    def __init__(self, wire: Wire, on_landing: OnLanding, on_moved: OnMoved) -> None:
        self._is_open = True
        self._wire = wire
        self._on_landing = on_landing
        self._on_moved = on_moved
        self._loop = asyncio.get_running_loop()
        self._free_s = 0.0  # when the link has sent all that was submitted

    @property
    def fault(self) -> str:
        """See `Transfers`."""
        return "" if self._is_open else "they have ended"

    @property
    def ailment(self) -> str:
        """See `Transfers`."""
        return self.fault

    def close(self) -> None:
        """Nothing leaves any more."""
        self._is_open = False

    def submit(self, transfer: Transfer) -> None:
        """See `Transfers`."""
        now_s = time.monotonic()
        begin_s = max(now_s, self._free_s)
        self._free_s = begin_s + transfer.num_bytes / self._wire.bytes_per_s
        took_s = self._free_s - begin_s + self._wire.latency_s
        self._loop.call_later(begin_s - now_s, self._begin, transfer, took_s)

    def _begin(self, transfer: Transfer, took_s: float) -> None:
        if not self._is_open or not transfer.may_start():
            transfer.on_refused()
            return
        self._loop.call_later(took_s, self._finish, transfer, took_s)

    def _finish(self, transfer: Transfer, took_s: float) -> None:
        fault = self._fault_of(transfer.agent)
        if fault is None:
            self._on_moved(transfer, took_s)
        transfer.on_done(fault)

    def notify(self, agent: str, notice: bytes, on_done: OnDone) -> None:
        """See `Transfers`."""
        self._loop.call_later(self._wire.latency_s, self._tell, agent, decode(notice, Landing), on_done)

    def _tell(self, agent: str, landing: Landing, on_done: OnDone) -> None:
        fault = self._fault_of(agent)
        if fault is None:
            self._wire.find(agent).hear(landing)
        on_done(fault)

    def hear(self, landing: Landing) -> None:
        """Another worker's writes lie here."""
        self._on_landing(landing)

    def add_peer(self, agent: str, metadata: bytes, on_done: OnDone) -> None:
        """See `Transfers`."""
        on_done(self._fault_of(agent))

    def remove_peer(self, agent: str) -> None:
        """Nothing is kept of a peer."""

    def expect(self, num_leaves: int) -> None:
        """Nothing looks more often: who writes calls."""

    def _fault_of(self, agent: str) -> KvmeshError | None:
        try:
            self._wire.find(agent)
        except PeerGone as error:
            return error
        return None
