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
from proto.errors import InvalidRequest, PeerGone
from proto.layout import check_convertible
from services.directory import Changed, Directory, Entry, Listed, Removed
from workers.transfer.transfer_thread import TransferThread

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker's memory, met: its pool can be written and read from here."""

    card: AgentCard

    @property
    def rank(self) -> RankAgent:
        return self.card.ranks[0]


class Peers:
    """The cards of all agents in a namespace, kept by `follow`, and the peers met so far."""

    def __init__(self, own: RankAgent, name: str, transfers: TransferThread) -> None:
        self._own = own
        self._name = name
        self._transfers = transfers
        self._cards: dict[str, AgentCard] = {}
        self._met: dict[str, Peer] = {}
        self._meeting = asyncio.Lock()

    def card(self, worker: str, incarnation: str) -> AgentCard | None:
        """The card of this very incarnation, if the directory has or had it while we watched."""
        found = self._cards.get(worker)
        return found if found is not None and found.incarnation == incarnation else None

    async def meet(self, worker: str, incarnation: str) -> Peer:
        """The peer, connected to at the first meeting.

        Raises:
            PeerGone: the directory does not know this incarnation.
            LayoutMismatch: KV cannot move between the two pools.
        """
        async with self._meeting:
            peer = self._met.get(incarnation)
            if peer is None:
                peer = self._met[incarnation] = await self._meet_first(worker, incarnation)
            return peer

    async def _meet_first(self, worker: str, incarnation: str) -> Peer:
        card = self.card(worker, incarnation)
        if card is None:
            raise PeerGone(peer=worker, reason=f"incarnation {incarnation} is not in the directory")
        peer = Peer(card)
        check_convertible(self._own.pool, peer.rank.pool, self._name, worker)
        await asyncio.wrap_future(self._transfers.add_peer(peer.rank.metadata))
        log.info("met %s", worker, extra={"incarnation": incarnation})
        return peer

    async def follow(self, directory: Directory, ns: str) -> None:
        """Keep the cards as the directory has them; a peer whose card is replaced is forgotten.

        A card that vanishes stays known: its worker may be alive behind an outage of the directory.
        """
        async with directory.watch(keys.agents(ns)) as changes:
            async for change in changes:
                match change:
                    case Listed(entries):
                        for entry in entries:
                            await self._learn(entry)
                    case Changed(entry):
                        await self._learn(entry)
                    case Removed():
                        pass

    async def _learn(self, entry: Entry) -> None:
        try:
            card = decode(entry.value, AgentCard)
        except InvalidRequest as error:
            log.warning("the directory holds a card that cannot be read", extra={"reason": str(error)})
            return
        former = self._cards.get(card.worker)
        self._cards[card.worker] = card
        if former is not None and former.incarnation != card.incarnation:
            await self._forget(former)

    async def _forget(self, card: AgentCard) -> None:
        async with self._meeting:
            peer = self._met.pop(card.incarnation, None)
            if peer is not None:
                try:
                    await asyncio.wrap_future(self._transfers.remove_peer(peer.rank.agent))
                except PeerGone:
                    log.info("a former peer was gone already", extra={"worker": card.worker})
