"""The way to every worker's memory, as the directory has it or had it last."""

import asyncio
import logging
from collections.abc import Callable

from proto import keys
from proto.cards import AgentCard
from proto.codec import decode
from proto.errors import InvalidRequest
from services.directory import Changed, Directory, Entry, Listed, Removed

log = logging.getLogger(__name__)


class Agents:
    """The cards of all agents in a namespace, kept by `follow`; those of a process serve all its workers.

    A card that vanishes stays known while its worker is not lost too: that one may be alive behind an outage
    of the directory. Loop only.
    """

    def __init__(self) -> None:
        self._cards: dict[str, AgentCard] = {}
        self._is_listed = asyncio.Event()
        self._removed: set[str] = set()
        self._lost: set[str] = set()
        self._new_listeners: list[Callable[[AgentCard], None]] = []
        self._forgotten_listeners: list[Callable[[AgentCard], None]] = []

    def card(self, worker: str, incarnation: str) -> AgentCard | None:
        """The card of this very incarnation, if the directory has or had it while we watched."""
        found = self._cards.get(worker)
        return found if found is not None and found.incarnation == incarnation else None

    async def wait_listed(self) -> None:
        """Until the directory has said once whom it has."""
        await self._is_listed.wait()

    def workers(self) -> list[str]:
        """Those whose cards are known."""
        return list(self._cards)

    def on_new(self, listener: Callable[[AgentCard], None]) -> None:
        """`listener` is called for each new life of a worker."""
        self._new_listeners.append(listener)

    def on_forgotten(self, listener: Callable[[AgentCard], None]) -> Callable[[], None]:
        """`listener` is called for each life of a worker that is over; the result takes it off again."""
        self._forgotten_listeners.append(listener)
        return lambda: self._forgotten_listeners.remove(listener)

    async def follow(self, directory: Directory, ns: str) -> None:
        """Keep the cards as the directory has them; one that is replaced is forgotten. For ever."""
        async with directory.watch(keys.agents(ns)) as changes:
            async for change in changes:
                match change:
                    case Listed(entries):
                        self._learn_all(entries)
                    case Changed(entry):
                        self._read(entry)
                    case Removed(key):
                        self._note_removed(keys.last_part(key))

    def learn(self, card: AgentCard) -> None:
        """This is the worker's card from now on; another incarnation of it is forgotten."""
        former = self._cards.get(card.worker)
        self._cards[card.worker] = card
        self._removed.discard(card.worker)
        if former is not None and former.incarnation != card.incarnation:
            self._forget(former)
        if former is None or former.incarnation != card.incarnation:
            for listener in self._new_listeners:
                listener(card)

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
            self._read(entry)
        self._is_listed.set()

    def _read(self, entry: Entry) -> None:
        try:
            card = decode(entry.value, AgentCard)
        except InvalidRequest as error:
            log.warning("the directory holds a card that cannot be read", extra={"reason": str(error)})
        else:
            self.learn(card)

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
        for listener in list(self._forgotten_listeners):
            listener(card)
