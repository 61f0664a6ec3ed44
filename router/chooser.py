"""The choice of a worker: who is eligible, what each would cost, and which it shall be."""

import random
import time
from collections.abc import Collection, Sequence

import msgspec

from proto.cards import ModelCard
from proto.errors import NoWorker
from proto.reports import LoadReport
from proto.roles import Role
from router.cost import Candidate, Demand, PrefillWorker, score
from router.hashed_prompt import HashedPrompt
from router.kv_index import KvIndex
from router.policy import Scored, choose
from router.predictions import Predictions
from router.settings import RouterSettings
from router.workers_view import Standing, WorkersView


class Rates(msgspec.Struct, frozen=True):
    """What a worker that has measured nothing yet is taken for: as good as the best of its model, so that it
    gets work and measures. Units: `prefill_rate` tokens a second, `decode_step_s` seconds."""

    prefill_rate: float
    decode_step_s: float


class Chooser:
    """Belongs to one event loop. Reads what was heard; changes nothing but whom it suspects."""

    def __init__(
        self,
        settings: RouterSettings,
        view: WorkersView,
        index: KvIndex,
        predictions: Predictions,
        draw: random.Random,
    ) -> None:
        self._settings = settings
        self._view = view
        self._index = index
        self._predictions = predictions
        self._draw = draw
        self._turn = 0
        self._suspects: dict[str, float] = {}

    def suspect(self, worker: str) -> None:
        """It did not answer: others are preferred for a moment."""
        self._suspects[worker] = time.monotonic() + self._settings.suspect_s

    def try_choose(
        self, model: ModelCard, prompt: HashedPrompt, max_tokens: int, exclude: Collection[str]
    ) -> Scored | None:
        """The worker for a request of at most `max_tokens` more tokens; None while all eligible are full.

        Raises:
            NoWorker: none is ready, or all that are, are in `exclude`.
        """
        eligible = self._eligible(model, exclude)
        roomy = [standing for standing in eligible if self._has_room(standing)]
        if not roomy:
            return None
        scored = self.score(model, prompt, max_tokens, roomy)
        self._turn += 1
        return choose(self._settings.policy, scored, self._turn, self._draw)

    def score(
        self, model: ModelCard, prompt: HashedPrompt, max_tokens: int, among: Sequence[Standing]
    ) -> list[Scored]:
        """What each of `among` would cost."""
        demand = Demand(prompt.num_tokens, max_tokens, prompt.block_size)
        held, promised = self._index.match(prompt.keys), self._predictions.match(prompt.keys)
        pool = list(self._view.ready(model, Role.PREFILL))
        rates = self._best_rates([standing.report for standing in (*among, *pool)])
        prefill_pool = [
            PrefillWorker(one.report.job_tokens, one.report.prefill_rate or rates.prefill_rate)
            for one in pool
        ]
        scored = []
        for standing in among:
            worker = standing.card.worker
            num_blocks = max(held.get(worker, 0), promised.get(worker, 0))
            candidate = self._candidate(standing, prompt.hit_tokens(num_blocks), rates)
            scored.append(Scored(candidate, score(candidate, demand, prefill_pool, self._settings.weights)))
        return scored

    def seat_s(self, model: ModelCard) -> float:
        """Seconds until the next seat comes free anywhere, when all are taken."""
        ready = list(self._view.ready(model, Role.DECODE))
        rates = self._best_rates([standing.report for standing in ready])
        per_s = 0.0
        for standing in ready:
            answer_s = self._settings.answer_tokens * (standing.report.decode_step_s or rates.decode_step_s)
            per_s += _seats(standing) / answer_s
        return 1 / per_s if per_s else 0.0

    def _eligible(self, model: ModelCard, exclude: Collection[str]) -> list[Standing]:
        ready = [one for one in self._view.ready(model, Role.DECODE) if one.card.worker not in exclude]
        if not ready:
            raise NoWorker(model=model.name)
        now_s = time.monotonic()
        self._suspects = {worker: until_s for worker, until_s in self._suspects.items() if until_s > now_s}
        return [one for one in ready if one.card.worker not in self._suspects] or ready

    def _has_room(self, standing: Standing) -> bool:
        promised = self._predictions.load_of(standing.card.worker)
        sequences = standing.report.num_running + standing.report.num_waiting + promised.num_sequences
        return sequences < _seats(standing) * self._settings.fill_limit

    def _candidate(self, standing: Standing, hit_tokens: int, rates: Rates) -> Candidate:
        report = standing.report
        return Candidate(
            worker=standing.card.worker,
            epoch=standing.epoch,
            num_sequences=report.num_running + report.num_waiting,
            max_sequences=_seats(standing),
            waiting_tokens=report.waiting_tokens,
            free_blocks=report.free_blocks,
            prefill_rate=report.prefill_rate or rates.prefill_rate,
            decode_step_s=report.decode_step_s or rates.decode_step_s,
            hit_tokens=hit_tokens,
            promised=self._predictions.load_of(standing.card.worker),
        )

    def _best_rates(self, reports: Sequence[LoadReport]) -> Rates:
        return Rates(
            max((one.prefill_rate for one in reports if one.prefill_rate), default=0.0)
            or self._settings.assumed_prefill_rate,
            min((one.decode_step_s for one in reports if one.decode_step_s), default=0.0)
            or self._settings.assumed_decode_step_s,
        )


def _seats(standing: Standing) -> int:
    return standing.report.max_sequences or standing.card.max_sequences
