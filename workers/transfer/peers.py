"""Whose memory is reachable: the meeting with each agent that the directory names.

A peer is one incarnation of a worker. A restarted worker is a new peer under a new agent name, so nothing
that was meant for its former life can reach the new one.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from proto.cards import AgentCard, RankAgent
from proto.errors import LayoutMismatch, PeerGone
from proto.layout import check_convertible
from workers.transfer.agents import Agents
from workers.transfer.outcome import Outcome
from workers.transfer.transfers import Transfers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker's memory, met: its pool can be written and read from here."""

    card: AgentCard

    @property
    def rank(self) -> RankAgent:
        return self.card.ranks[0]


@dataclass(frozen=True, slots=True)
class _Meeting:
    """`settled` is None once the peer has been met, else why it cannot be."""

    peer: Peer
    settled: Outcome


class Peers:
    """The peers that a worker has met so far. Loop only.

    `forget` is to be told of each life that is over; `judge` of each new one, where pools may differ.
    """

    def __init__(self, own: RankAgent, name: str, transfers: Transfers, agents: Agents) -> None:
        self._own = own
        self._name = name
        self._transfers = transfers
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
            LayoutMismatch: KV cannot move between the two pools.
        """
        meeting = self._meetings.get(incarnation)
        if meeting is None:
            meeting = self._meetings[incarnation] = self._begin_meeting(worker, incarnation)
        fault = await meeting.settled.wait()
        if fault is not None:
            if self._meetings.get(incarnation) is meeting:
                del self._meetings[incarnation]
            raise fault
        return meeting.peer

    def _begin_meeting(self, worker: str, incarnation: str) -> _Meeting:
        card = self.card(worker, incarnation)
        if card is None:
            raise PeerGone(peer=worker, reason=f"incarnation {incarnation} is not in the directory")
        self._check_convertible(card)
        peer, settled = Peer(card), Outcome(asyncio.get_running_loop())
        self._transfers.add_peer(peer.rank.agent, peer.rank.metadata, settled.settle)
        log.info("meeting %s", worker, extra={"incarnation": incarnation})
        return _Meeting(peer, settled)

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
            LayoutMismatch: KV cannot move between the card's pool and ours.
        """
        if len(card.ranks) != 1:
            reason = f"it has {len(card.ranks)} ranks, and ours has one"
            raise LayoutMismatch(source=self._name, target=card.worker, reason=reason)
        check_convertible(self._own.pool, card.ranks[0].pool, self._name, card.worker)

    def part(self, peer: Peer) -> None:
        """A transfer to or from it failed: that connection is dead for good, and who comes next meets anew.

        Nothing here slows those who try again: an owner does not ask the holder of a failed job for a while.
        """
        meeting = self._meetings.get(peer.card.incarnation)
        if meeting is not None and meeting.peer is peer:
            del self._meetings[peer.card.incarnation]
            self._transfers.remove_peer(peer.rank.agent)
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
        meeting = self._meetings.pop(card.incarnation, None)
        if meeting is not None:
            self._transfers.remove_peer(meeting.peer.rank.agent)
