"""Who can be chosen: cards, load reports and liveness, merged for each worker.

The directory says who exists, beats say who is alive. The newest of card and report wins, in which `leaving`
is final. A vanished card alone ends nothing: while its beats go on a worker counts,
and so does a model while any of its workers does.
"""

from collections.abc import Callable, Collection, Iterator

import msgspec
import numpy as np

from proto.cards import KvClass, ModelCard, WorkerCard
from proto.reports import LoadReport
from proto.roles import Role, WorkerState, newness
from router.columns import Column, Columns, Slotted
from router.lives import Lives
from router.slots import Slots


class Standing(msgspec.Struct, frozen=True):
    """A worker as it stands: its card, its last report, and the newest of what the two say."""

    card: WorkerCard
    report: LoadReport
    role: Role
    epoch: int
    state: WorkerState


class Roster(msgspec.Struct, frozen=True, eq=False):
    """The ready workers of a model in one role, by name: one place for each in every column of theirs."""

    workers: list[str]
    epochs: list[int]
    places: dict[str, int]
    slots: Slotted


class Loads(msgspec.Struct, frozen=True, eq=False):
    """What the workers of a roster reported. Units: as in `LoadReport`; `seats` sequences at once."""

    num_sequences: Column
    seats: Column
    waiting_tokens: Column
    free_blocks: Column
    job_tokens: Column
    prefill_rate: Column
    decode_step_s: Column


def newest(card: WorkerCard, report: LoadReport) -> Standing:
    """The two words of one life, merged."""
    is_card_newer = _newness(card) >= _newness(report)
    word: WorkerCard | LoadReport = card if is_card_newer else report
    return Standing(card, report, word.role, word.epoch, word.state)


def _newness(word: WorkerCard | LoadReport) -> tuple[bool, int, int, int]:
    return newness(word.epoch, word.change, word.state)


class WorkersView:
    """Cards and reports of the present life of every worker. `is_alive` says whose beats go on."""

    def __init__(self, lives: Lives, slots: Slots, is_alive: Callable[[str], bool]) -> None:
        self._lives = lives
        self._slots = slots
        self._loads = Columns(len(Loads.__struct_fields__))
        self._rosters: dict[tuple[str, Role], Roster] = {}
        self._rosters_at = 0
        self._is_alive = is_alive
        self._models: dict[str, ModelCard] = {}
        self._listed_models: set[str] = set()
        self._cards: dict[str, WorkerCard] = {}
        self._reports: dict[str, LoadReport] = {}
        self._listed: set[str] = set()

    def put_model(self, card: ModelCard) -> None:
        self._models[card.name] = card
        self._rosters.clear()
        self._listed_models.add(card.name)

    def drop_model(self, name: str) -> None:
        """The directory has the model no more; it stays while a worker of it is known."""
        self._listed_models.discard(name)
        self._forget_models()

    def model(self, name: str) -> ModelCard | None:
        return self._models.get(name)

    @property
    def models(self) -> Collection[str]:
        return self._models.keys()

    def put_card(self, card: WorkerCard) -> None:
        """The directory has this card. One of a past life is passed over."""
        if self._is_present(card.worker, card.incarnation):
            before = self.standing(card.worker)
            self._cards[card.worker] = card
            self._note_change(card.worker, before)
            self._listed.add(card.worker)

    def drop_key(self, worker: str) -> None:
        """The directory has the card no more; the worker stays while its beats go on."""
        self._listed.discard(worker)

    def put_report(self, report: LoadReport) -> None:
        """A report came. One of a past life or an earlier epoch is passed over."""
        known = self._reports.get(report.worker)
        is_late = known is not None and known.incarnation == report.incarnation and known.epoch > report.epoch
        if self._is_present(report.worker, report.incarnation) and not is_late:
            before = self.standing(report.worker)
            self._reports[report.worker] = report
            self._note_change(report.worker, before)

    def note_liveness(self) -> None:
        """Somebody was lost, or is heard again."""
        self._rosters.clear()

    def standing(self, worker: str) -> Standing | None:
        """None until both the card and a report of the present life are known."""
        card, report = self._cards.get(worker), self._reports.get(worker)
        if card is None or report is None:
            return None
        if not card.incarnation == report.incarnation == self._lives.present(worker):
            return None
        return newest(card, report)

    def is_admitted(self, worker: str, incarnation: str) -> bool:
        """Whether this life of a worker is known to the full, so that it can be chosen while it is ready."""
        standing, model = self.standing(worker), None
        if standing is not None:
            model = self._models.get(standing.card.model)
        return (
            standing is not None
            and standing.card.incarnation == incarnation
            and model is not None
            and standing.card.kv_class == model.kv_class
            and self._is_alive(worker)
        )

    @property
    def listed(self) -> Collection[str]:
        """Workers that the directory has."""
        return self._listed

    def ready(self, model: ModelCard, role: Role) -> Iterator[Standing]:
        """Workers that take new work of this model in this role: ready, alive, and alike in KV."""
        for worker in self._cards:
            standing = self.standing(worker)
            if (
                standing is not None
                and standing.card.model == model.name
                and standing.role is role
                and standing.state is WorkerState.READY
                and standing.card.kv_class == model.kv_class
                and self._is_alive(worker)
            ):
                yield standing

    def roster(self, model: ModelCard, role: Role) -> Roster:
        """`ready` by name, made anew only after somebody came, went or changed."""
        if self._rosters_at != self._lives.num_changes:
            self._rosters_at = self._lives.num_changes
            self._rosters.clear()
        roster = self._rosters.get((model.name, role))
        if roster is None:
            roster = self._rosters[model.name, role] = self._make_roster(model, role)
        return roster

    def loads(self, roster: Roster) -> Loads:
        """The last report of each."""
        return Loads(*self._loads.take(roster.slots))

    @property
    def num_ready(self) -> int:
        """Workers of any model that may be chosen for a request."""
        return sum(1 for model in self._models.values() for _ in self.ready(model, Role.DECODE))

    def take_gone(self) -> list[str]:
        """Workers with neither key nor beat: forgets them, and says which they were."""
        known = self._cards.keys() | self._reports.keys()
        gone = [worker for worker in known if worker not in self._listed and not self._is_alive(worker)]
        for worker in gone:
            self._cards.pop(worker, None)
            self._reports.pop(worker, None)
            self._lives.forget(worker)
        self._rosters.clear()
        self._forget_models()
        return gone

    def _forget_models(self) -> None:
        kept = self._listed_models | {card.model for card in self._cards.values()}
        self._models = {name: model for name, model in self._models.items() if name in kept}

    def _make_roster(self, model: ModelCard, role: Role) -> Roster:
        ready = sorted(self.ready(model, role), key=lambda one: one.card.worker)
        workers = [one.card.worker for one in ready]
        return Roster(
            workers=workers,
            epochs=[one.epoch for one in ready],
            places={worker: place for place, worker in enumerate(workers)},
            slots=np.array([self._slots.allot(worker) for worker in workers], np.intp),
        )

    def _note_change(self, worker: str, before: Standing | None) -> None:
        """A word of this worker came: its row is written, and the rosters go when it has another standing."""
        now = self.standing(worker)
        if now is None or before is None or _place_of(now) != _place_of(before):
            self._rosters.clear()
        if now is not None:
            self._loads.put(self._slots.allot(worker), _row_of(now))

    def _is_present(self, worker: str, incarnation: str) -> bool:
        return self._lives.present(worker) == incarnation


def _place_of(standing: Standing) -> tuple[str, Role, int, WorkerState, KvClass]:
    """What decides in which roster a worker is."""
    card = standing.card
    return (card.model, standing.role, standing.epoch, standing.state, card.kv_class)


def _row_of(standing: Standing) -> tuple[float, ...]:
    """In the order of `Loads`."""
    report = standing.report
    return (
        report.num_running + report.num_waiting,
        max(1, report.max_sequences or standing.card.max_sequences),
        report.waiting_tokens,
        report.free_blocks,
        report.job_tokens,
        report.prefill_rate,
        report.decode_step_s,
    )
