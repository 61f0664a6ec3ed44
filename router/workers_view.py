"""Who can be chosen: cards, load reports and liveness, merged for each worker.

The directory says who exists, beats say who is alive. The newest of card and report wins: by epoch, then by
state, in which `leaving` is final. A vanished card alone ends nothing: while its beats go on a worker counts,
and so does a model while any of its workers does.
"""

from collections.abc import Callable, Collection, Iterator

import msgspec

from proto.cards import ModelCard, WorkerCard
from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from router.lives import Lives

_RANK = {WorkerState.READY: 0, WorkerState.DRAINING: 1, WorkerState.LEAVING: 2}


class Standing(msgspec.Struct, frozen=True):
    """A worker as it stands: its card, its last report, and the newest of what the two say."""

    card: WorkerCard
    report: LoadReport
    role: Role
    epoch: int
    state: WorkerState


def newest(card: WorkerCard, report: LoadReport) -> Standing:
    """The two words of one life, merged."""
    is_card_newer = _newness(card) >= _newness(report)
    word: WorkerCard | LoadReport = card if is_card_newer else report
    return Standing(card, report, word.role, word.epoch, word.state)


def _newness(word: WorkerCard | LoadReport) -> tuple[bool, int, int]:
    return (word.state is WorkerState.LEAVING, word.epoch, _RANK[word.state])


class WorkersView:
    """Cards and reports of the present life of every worker. `is_alive` says whose beats go on."""

    def __init__(self, lives: Lives, is_alive: Callable[[str], bool]) -> None:
        self._lives = lives
        self._is_alive = is_alive
        self._models: dict[str, ModelCard] = {}
        self._listed_models: set[str] = set()
        self._cards: dict[str, WorkerCard] = {}
        self._reports: dict[str, LoadReport] = {}
        self._listed: set[str] = set()

    def put_model(self, card: ModelCard) -> None:
        self._models[card.name] = card
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
            self._cards[card.worker] = card
            self._listed.add(card.worker)

    def drop_key(self, worker: str) -> None:
        """The directory has the card no more; the worker stays while its beats go on."""
        self._listed.discard(worker)

    def put_report(self, report: LoadReport) -> None:
        """A report came. One of a past life or an earlier epoch is passed over."""
        known = self._reports.get(report.worker)
        is_late = known is not None and known.incarnation == report.incarnation and known.epoch > report.epoch
        if self._is_present(report.worker, report.incarnation) and not is_late:
            self._reports[report.worker] = report

    def standing(self, worker: str) -> Standing | None:
        """None until both the card and a report of the present life are known."""
        card, report = self._cards.get(worker), self._reports.get(worker)
        if card is None or report is None:
            return None
        if not card.incarnation == report.incarnation == self._lives.present(worker):
            return None
        return newest(card, report)

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
        self._forget_models()
        return gone

    def _forget_models(self) -> None:
        kept = self._listed_models | {card.model for card in self._cards.values()}
        self._models = {name: model for name, model in self._models.items() if name in kept}

    def _is_present(self, worker: str, incarnation: str) -> bool:
        return self._lives.present(worker) == incarnation
