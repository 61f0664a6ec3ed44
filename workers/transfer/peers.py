"""Whose memory is reachable: the agents in the directory, and the meeting with each of them.

A peer is one incarnation of a worker. A restarted worker is a new peer under a new agent name, so nothing
that was meant for its former life can reach the new one.
"""

import asyncio
import logging
from dataclasses import dataclass

from proto import keys
from proto.cards import AgentCard, RankAgent
from proto.codec import decode
from proto.errors import InvalidRequest, LayoutMismatch, PeerGone
from proto.layout import check_convertible
from services.directory import Changed, Directory, Entry, Listed, Removed
from workers.transfer.outcome import Outcome
from workers.transfer.transfer_thread import TransferThread

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
    """The cards of all agents in a namespace, kept by `follow`, and the peers met so far. Loop only."""

    def __init__(self, own: RankAgent, name: str, transfers: TransferThread) -> None:
        self._own = own
        self._name = name
        self._transfers = transfers
        self._cards: dict[str, AgentCard] = {}
        self._meetings: dict[str, _Meeting] = {}
        self._refused: set[str] = set()
        self._removed: set[str] = set()
        self._lost: set[str] = set()

    def card(self, worker: str, incarnation: str) -> AgentCard | None:
        """The card of this very incarnation, if the directory has or had it while we watched."""
        found = self._cards.get(worker)
        return found if found is not None and found.incarnation == incarnation else None

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

    def _check_convertible(self, card: AgentCard) -> None:
        """
        Raises:
            LayoutMismatch: KV cannot move between the card's pool and ours.
        """
        if len(card.ranks) != 1:
            reason = f"it has {len(card.ranks)} ranks, and ours has one"
            raise LayoutMismatch(source=self._name, target=card.worker, reason=reason)
        check_convertible(self._own.pool, card.ranks[0].pool, self._name, card.worker)

    async def follow(self, directory: Directory, ns: str) -> None:
        """Keep the cards as the directory has them; a peer whose card is replaced is forgotten.

        A card that vanishes stays known while its worker is not lost too: that one may be alive behind an
        outage of the directory.
        """
        async with directory.watch(keys.agents(ns)) as changes:
            async for change in changes:
                match change:
                    case Listed(entries):
                        self._learn_all(entries)
                    case Changed(entry):
                        self._learn(entry)
                    case Removed(key):
                        self._note_removed(keys.last_part(key))

    def lose(self, worker: str) -> None:
        """The worker beats no more."""
        if worker in self._cards:
            self._lost.add(worker)
            self._forget_if_gone(worker)

    def regain(self, worker: str) -> None:
        """The worker beats, for the first time or again."""
        self._lost.discard(worker)

    def _learn_all(self, entries: list[Entry]) -> None:
        listed = {keys.last_part(entry.key) for entry in entries}
        for worker in set(self._cards) - listed:
            self._note_removed(worker)
        for entry in entries:
            self._learn(entry)

    def _learn(self, entry: Entry) -> None:
        try:
            card = decode(entry.value, AgentCard)
        except InvalidRequest as error:
            log.warning("the directory holds a card that cannot be read", extra={"reason": str(error)})
            return
        former = self._cards.get(card.worker)
        self._cards[card.worker] = card
        self._removed.discard(card.worker)
        if former is not None and former.incarnation != card.incarnation:
            self._forget(former)
        if card.worker != self._name and (former is None or former.incarnation != card.incarnation):
            self._judge(card)

    def _judge(self, card: AgentCard) -> None:
        """Said once, when the two first hear of each other, and not when somebody waits for KV."""
        try:
            self._check_convertible(card)
        except LayoutMismatch as error:
            self._refused.add(card.incarnation)
            log.warning("no KV moves to or from %s", card.worker, extra={"reason": str(error)})

    def _note_removed(self, worker: str) -> None:
        if worker in self._cards:
            self._removed.add(worker)
            self._forget_if_gone(worker)

    def _forget_if_gone(self, worker: str) -> None:
        if worker in self._removed and worker in self._lost:
            self._removed.discard(worker)
            self._lost.discard(worker)
            self._forget(self._cards.pop(worker))

    def _forget(self, card: AgentCard) -> None:
        self._refused.discard(card.incarnation)
        meeting = self._meetings.pop(card.incarnation, None)
        if meeting is not None:
            self._transfers.remove_peer(meeting.peer.rank.agent)
