"""Whose memory is reachable: the meeting with each worker that the directory names.

A peer is one incarnation of a worker. A restarted worker is a new peer under new agents' names, so nothing
that was meant for its former life can reach the new one. Each rank here meets those ranks there with which it
has KV in common, and the first ranks meet for the notices; all of them, or the two workers have not met.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from proto.cards import AgentCard, RankAgent
from proto.errors import LayoutMismatch, PeerGone
from proto.layout import PoolLayout, check_convertible
from workers.transfer.agents import Agents
from workers.transfer.outcome import Outcome
from workers.transfer.own_memory import OwnMemory
from workers.transfer.rank_routes import plan_routes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker's memory, met: the pools of its ranks can be written and read from here."""

    card: AgentCard

    @property
    def rank(self) -> RankAgent:
        """The first, which hears the notices."""
        return self.card.ranks[0]

    @property
    def pools(self) -> tuple[PoolLayout, ...]:
        return pools_of(self.card)

    @property
    def num_blocks(self) -> int:
        return min(pool.num_blocks for pool in self.pools)


def pools_of(card: AgentCard) -> tuple[PoolLayout, ...]:
    """Those of all ranks, in their order."""
    return tuple(rank.pool for rank in card.ranks)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Of each pair of ranks what came of it. Each of them settles, and the peer is met if all went well."""

    peer: Peer
    pairs: Sequence["_Pair"]
    settled: Sequence[Outcome]


class _Pair(NamedTuple):
    """A rank of ours, and one of theirs."""

    own: int
    their: RankAgent


class Peers:
    """The peers that a worker has met so far. Loop only.

    `forget` is to be told of each life that is over; `judge` of each new one, where pools may differ.
    """

    def __init__(self, own: OwnMemory, name: str, agents: Agents) -> None:
        self._own = own
        self._name = name
        self._agents = agents
        self._meetings: dict[str, _Meeting] = {}
        self._refused: set[str] = set()

    def card(self, worker: str, incarnation: str) -> AgentCard | None:
        """As `Agents.card`."""
        return self._agents.card(worker, incarnation)

    def can_move(self, worker: str, incarnation: str) -> bool:
        """Whether KV can move between this very incarnation and here, as far as its card says."""
        card = self.card(worker, incarnation)
        return card is None or incarnation not in self._refused

    async def meet(self, worker: str, incarnation: str) -> Peer:
        """The peer, connected to at the first meeting.

        Cancel: the meeting goes on, for whoever comes next.

        Raises:
            PeerGone: the directory does not know this incarnation, or its memory cannot be reached.
            LayoutMismatch: KV cannot move between the two workers.
        """
        meeting = self._meetings.get(incarnation)
        if meeting is None:
            meeting = self._meetings[incarnation] = self._begin_meeting(worker, incarnation)
        faults = [await settled.wait() for settled in meeting.settled]
        for fault in faults:
            if fault is not None:
                self._end(meeting)
                raise fault
        return meeting.peer

    def _begin_meeting(self, worker: str, incarnation: str) -> _Meeting:
        card = self.card(worker, incarnation)
        if card is None:
            raise PeerGone(peer=worker, reason=f"incarnation {incarnation} is not in the directory")
        self._check_convertible(card)
        loop = asyncio.get_running_loop()
        pairs = self._pairs_with(card)
        meeting = _Meeting(Peer(card), pairs, [Outcome(loop) for _ in pairs])
        for (own, their), settled in zip(pairs, meeting.settled, strict=True):
            self._own.ranks[own].transfers.add_peer(their.agent, their.metadata, settled.settle)
        log.info("meeting %s", worker, extra={"incarnation": incarnation})
        return meeting

    def _pairs_with(self, card: AgentCard) -> list[_Pair]:
        """Those of which one may write to the other or read from it, and the two first, for the notices."""
        ours, theirs = self._own.pools, pools_of(card)
        outward = {(route.source, route.target) for route in plan_routes(ours, theirs)}
        inward = {(route.target, route.source) for route in plan_routes(theirs, ours)}
        return [_Pair(own, card.ranks[their]) for own, their in sorted({(0, 0)} | outward | inward)]

    def judge(self, card: AgentCard) -> None:
        """Said once, when the two first hear of each other, and not when somebody waits for KV."""
        if card.worker == self._name:
            return
        try:
            self._check_convertible(card)
        except LayoutMismatch as error:
            self._refused.add(card.incarnation)
            log.warning("no KV moves to or from %s", card.worker, extra={"reason": str(error)})

    def _check_convertible(self, card: AgentCard) -> None:
        """
        Raises:
            LayoutMismatch: KV cannot move between the card's worker and ours.
        """
        check_convertible(self._own.pools, pools_of(card), self._name, card.worker)

    def part(self, peer: Peer) -> None:
        """A transfer to or from it failed: that connection is dead for good, and who comes next meets anew.

        Nothing here slows those who try again: an owner does not ask the holder of a failed job for a while.
        """
        meeting = self._meetings.get(peer.card.incarnation)
        if meeting is not None and meeting.peer is peer:
            self._end(meeting)
            log.info("parting from %s", peer.card.worker, extra={"incarnation": peer.card.incarnation})

    @contextmanager
    def parting_if_gone(self, peer: Peer) -> Iterator[None]:
        """What is raised as `PeerGone` in the body is raised on, after `part`."""
        try:
            yield
        except PeerGone:
            self.part(peer)
            raise

    def forget(self, card: AgentCard) -> None:
        """This life of a worker is over."""
        self._refused.discard(card.incarnation)
        meeting = self._meetings.get(card.incarnation)
        if meeting is not None:
            self._end(meeting)

    def _end(self, meeting: _Meeting) -> None:
        """Every pair of it parts, also those that went well while another failed."""
        incarnation = meeting.peer.card.incarnation
        if self._meetings.get(incarnation) is meeting:
            del self._meetings[incarnation]
            for own, their in meeting.pairs:
                self._own.ranks[own].transfers.remove_peer(their.agent)
