"""What the router hears, taken in: cards, beats, KV events, and the choices of other routers.

Words of a worker's past life are passed over here, so that whoever keeps what was heard need not ask.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from proto.cards import ModelCard, WorkerCard
from proto.codec import decode
from proto.errors import InvalidRequest
from proto.events import KvEvents
from proto.keys import last_part, model_of
from proto.reports import AnyBeat, LoadReport
from proto.requests import Choice
from router.event_feed import EventFeed, check_events
from router.hit_metrics import HitMetrics
from router.kv_index import KvIndex, block_keys
from router.lives import Lives
from router.predictions import Predictions, Promise
from router.slots import Slots
from router.workers_view import WorkersView
from services.bus import Delivery
from services.directory import Change, Changed, Entry, Listed

log = logging.getLogger(__name__)

Card = TypeVar("Card", ModelCard, WorkerCard)


class Hearing:
    """Belongs to one event loop. `listeners` are called after every word that may change a choice."""

    def __init__(
        self,
        router: str,
        slots: Slots,
        lives: Lives,
        view: WorkersView,
        index: KvIndex,
        feed: EventFeed,
        predictions: Predictions,
        hits: HitMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._has_models = False
        self._has_workers = False
        self._router = router
        self._slots = slots
        self._lives = lives
        self._view = view
        self._index = index
        self._feed = feed
        self._predictions = predictions
        self._hits = hits
        self._clock = clock

    @property
    def has_listings(self) -> bool:
        """Whether the directory has said which models and which workers there are."""
        return self._has_models and self._has_workers

    def hear_models(self, change: Change) -> None:
        """What the directory says of models."""
        if isinstance(change, Listed):
            self._has_models = True
            for name in set(self._view.models) - {model_of(entry.key) for entry in change.entries}:
                self._view.drop_model(name)
        for entry in _entries(change):
            card = _read(entry.key, entry.value, ModelCard)
            if card is not None:
                self._view.put_model(card)
        if not isinstance(change, Listed | Changed):
            self._view.drop_model(model_of(change.key))
        self.tell()

    def hear_workers(self, change: Change) -> None:
        """What the directory says of workers."""
        if isinstance(change, Listed):
            self._has_workers = True
            for worker in set(self._view.listed) - {last_part(entry.key) for entry in change.entries}:
                self._view.drop_key(worker)
        for entry in _entries(change):
            card = _read(entry.key, entry.value, WorkerCard)
            if card is not None:
                self._meet(card.worker, card.incarnation)
                self._view.put_card(card)
        if not isinstance(change, Listed | Changed):
            self._view.drop_key(last_part(change.key))
        self._forget_gone()
        self.tell()

    def hear_beat(self, process: str, beat: AnyBeat) -> None:
        if not isinstance(beat, LoadReport) or beat.worker != process:
            return
        now_s = self._clock()
        if self._lives.is_back(beat.worker, beat.incarnation, now_s):
            self._begin(beat.worker, beat.incarnation)
        if not self._meet(beat.worker, beat.incarnation):
            return
        self._lives.note_report(beat.worker, now_s)
        self._view.put_report(beat)
        self._feed.take_report(beat.worker, beat.last_event, now_s)
        self._predictions.settle(
            beat.worker, beat.decisions, lambda keys: self._index.which_of(beat.worker, keys), now_s
        )
        self._hits.report(beat, now_s)
        self.tell()

    def hear_liveness(self, process: str, is_alive: bool) -> None:
        """A process is heard for the first time, again, or no more."""
        self._view.note_liveness()
        if not is_alive:
            self._forget_gone()
        self.tell()

    def hear_events(self, delivery: Delivery) -> None:
        """Those of a life not met by its card or its beat are passed over; a snapshot heals it."""
        batch = check_events(decode(delivery.payload, KvEvents))
        if self._lives.present(batch.worker) == batch.incarnation:
            self._feed.take_events(batch, self._clock())
            self._hits.count_events(len(batch.events))
            self.tell()

    def hear_choice(self, delivery: Delivery) -> None:
        choice = decode(delivery.payload, Choice)
        decision = choice.decision
        if decision.router == self._router or self._lives.present(decision.worker) is None:
            return
        self.note(choice)

    def note(self, choice: Choice) -> Promise:
        """A choice was made, here or elsewhere; what it promises counts until the worker says so itself."""
        decision = choice.decision
        promise = Promise(
            router=decision.router,
            number=decision.number,
            worker=decision.worker,
            new_tokens=choice.new_tokens,
            keys=block_keys(choice.hashes),
            made_s=self._clock(),
        )
        self._predictions.note(promise)
        self._hits.promise(decision)
        return promise

    def withdraw(self, promise: Promise) -> None:
        """The worker did not take it."""
        self._predictions.withdraw(promise)
        self._hits.withdraw(promise.worker, promise.router, promise.number)

    def _meet(self, worker: str, incarnation: str) -> bool:
        """Whether this is the worker's present life; a life not met before begins."""
        if self._lives.is_new(worker, incarnation):
            self._begin(worker, incarnation)
        return self._lives.present(worker) == incarnation

    def _begin(self, worker: str, incarnation: str) -> None:
        self._lives.begin(worker, incarnation, self._clock())
        self._feed.begin_life(worker, incarnation)
        self._predictions.forget(worker)
        self._hits.begin_life(worker)

    def _forget_gone(self) -> None:
        for worker in self._view.take_gone():
            self._feed.forget(worker)
            self._predictions.forget(worker)
            self._hits.begin_life(worker)
            self._slots.give_back(worker)

    def tell(self) -> None:
        """Something that a choice rests on has changed."""
        for listener in self.listeners:
            listener()


def _entries(change: Change) -> list[Entry]:
    if isinstance(change, Listed):
        return change.entries
    return [change.entry] if isinstance(change, Changed) else []


def _read(key: str, value: bytes, kind: type[Card]) -> Card | None:
    """The card under `key`; one that cannot be read, from a newer version say, is as if it were not there."""
    try:
        return decode(value, kind)
    except InvalidRequest as error:
        log.warning("an unreadable card: %s", error, extra={"key": key})
        return None
