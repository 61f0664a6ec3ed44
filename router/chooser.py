"""The choice of a worker: who is eligible, what each would cost, and which it shall be."""

import random
import time
from collections import Counter
from collections.abc import Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from proto.cards import ModelCard
from proto.errors import GoElsewhere, InvalidRequest, NoWorker, WorkerNotReady
from proto.roles import Role, WorkerState
from router.columns import Column, Places
from router.cost import Candidates, Demand, PrefillPool, Terms, score
from router.hashed_prompt import HashedPrompt
from router.kv_index import KvIndex
from router.policy import Policy, choose
from router.predictions import Predictions
from router.settings import RouterSettings
from router.slots import Slots
from router.workers_view import Loads, Roster, WorkersView


class Ask(msgspec.Struct, frozen=True):
    """What a request asks of the choice.

    `wanted` names the one worker that may be chosen, where an operator says so. Units: `max_tokens` still to
    be generated at most.
    """

    max_tokens: int
    exclude: Collection[str] = ()
    wanted: str = ""


NUM_PREFIXES = 8
"""Prefill workers that a choice names, of those that hold most of the prompt."""


class Chosen(msgspec.Struct, frozen=True):
    """The worker for a request. Units: `hit_tokens` of the prompt that it holds, `prefill_prefixes` what
    prefill workers do; `cost_s` its score."""

    worker: str
    epoch: int
    policy: Policy
    hit_tokens: int
    prefill_prefixes: dict[str, int]
    cost_s: float


class Scores(msgspec.Struct, frozen=True, eq=False):
    """Every ready worker as it stands for one request; places are those of `roster`.

    `eligible` are places that the request may go to, `roomy` those of them that are not full.
    """

    policy: Policy
    roster: Roster
    eligible: Places
    roomy: Places
    candidates: Candidates
    prefill: Roster
    prefill_pool: PrefillPool
    terms: Terms


class Chooser:
    """Belongs to one event loop. Reads what was heard; changes nothing but whom it suspects."""

    def __init__(
        self,
        settings: RouterSettings,
        slots: Slots,
        view: WorkersView,
        index: KvIndex,
        predictions: Predictions,
        draw: random.Random,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._view = view
        self._index = index
        self._predictions = predictions
        self._draw = draw
        self._turns: Counter[str] = Counter()
        self._suspects: dict[str, float] = {}

    def suspect(self, worker: str) -> None:
        """It did not answer, or sent work elsewhere: others are preferred for a moment."""
        self._suspects[worker] = time.monotonic() + self._settings.suspect_s

    def try_choose(self, model: ModelCard, prompt: HashedPrompt, ask: Ask) -> Chosen | None:
        """The worker for a request; None while all eligible are full.

        Raises:
            NoWorker: none is ready, or all that are, are excluded.
            InvalidRequest, WorkerNotReady, GoElsewhere: the wanted one takes no requests of this model, none
                while it is as it is, or is lost and may come back.
        """
        roster = self._view.roster(model, Role.DECODE)
        eligible = self._eligible(model, roster, ask)
        roomy = self._roomy(roster, eligible)
        if not len(roomy):
            return None
        scores = self._score(model, prompt, ask, roster, eligible, roomy)
        self._turns[model.name] += 1
        return self._pick(model, scores)

    def explain(self, model: ModelCard, prompt: HashedPrompt, ask: Ask) -> tuple[Scores, Chosen | None]:
        """What `try_choose` would say, and why; changes nothing.

        Raises:
            NoWorker, InvalidRequest, WorkerNotReady, GoElsewhere: as `try_choose`.
        """
        roster = self._view.roster(model, Role.DECODE)
        eligible = self._eligible(model, roster, ask)
        roomy = self._roomy(roster, eligible)
        scores = self._score(model, prompt, ask, roster, eligible, roomy)
        return scores, self._pick(model, scores) if len(roomy) else None

    def _score(
        self,
        model: ModelCard,
        prompt: HashedPrompt,
        ask: Ask,
        roster: Roster,
        eligible: Places,
        roomy: Places,
    ) -> Scores:
        prefill, depths = self._view.roster(model, Role.PREFILL), self._depths(prompt)
        candidates, prefill_pool = self._candidates(
            roster,
            self._view.loads(prefill),
            prompt.hit_tokens(depths[roster.slots]),
            prompt.hit_tokens(depths[prefill.slots]),
        )
        demand = Demand(prompt.num_tokens, ask.max_tokens, prompt.block_size)
        terms = score(candidates, demand, prefill_pool, self._settings.weights)
        policy = self._settings.policy_of(model.name)
        return Scores(policy, roster, eligible, roomy, candidates, prefill, prefill_pool, terms)

    def _pick(self, model: ModelCard, scores: Scores) -> Chosen:
        policy, total_s, turn = scores.policy, scores.terms.total_s, self._turns[model.name]
        place = choose(policy, total_s, scores.candidates.load, scores.roomy, turn, self._draw)
        return Chosen(
            worker=scores.roster.workers[place],
            epoch=scores.roster.epochs[place],
            policy=policy,
            hit_tokens=int(scores.candidates.hit_tokens[place]),
            prefill_prefixes=_prefixes(scores.prefill, scores.prefill_pool.hit_tokens),
            cost_s=float(total_s[place]),
        )

    def seat_s(self, model: ModelCard) -> float:
        """Seconds until the next seat comes free anywhere, when all are taken."""
        loads = self._view.loads(self._view.roster(model, Role.DECODE))
        if not len(loads.seats):
            return 0.0
        step_s = _filled(
            loads.decode_step_s, _least(loads.decode_step_s) or self._settings.assumed_decode_step_s
        )
        return 1 / float((loads.seats / (self._settings.answer_tokens * step_s)).sum())

    def _eligible(self, model: ModelCard, roster: Roster, ask: Ask) -> Places:
        """Suspects only where there is nobody else."""
        if ask.wanted:
            return np.array([self._wanted_place(model, roster, ask)])
        ready = _without(np.arange(len(roster.workers)), roster, ask.exclude)
        if not len(ready):
            raise NoWorker(model=model.name)
        now_s = time.monotonic()
        self._suspects = {worker: until_s for worker, until_s in self._suspects.items() if until_s > now_s}
        trusted = _without(ready, roster, self._suspects)
        return trusted if len(trusted) else ready

    def _roomy(self, roster: Roster, eligible: Places) -> Places:
        """Which of these places are not full."""
        loads = self._view.loads(roster)
        promised_sequences, _ = self._predictions.loads(roster.slots)
        num_sequences = loads.num_sequences + promised_sequences
        roomy: Places = eligible[(num_sequences < loads.seats * self._settings.fill_limit)[eligible]]
        return roomy

    def _wanted_place(self, model: ModelCard, roster: Roster, ask: Ask) -> int:
        place = roster.places.get(ask.wanted)
        if place is not None and ask.wanted not in ask.exclude:
            return place
        standing = self._view.standing(ask.wanted)
        if standing is None:
            raise InvalidRequest(field="worker_id", reason="there is no such worker")
        if standing.card.model != model.name:
            raise InvalidRequest(field="worker_id", reason="this worker serves another model")
        if standing.role is not Role.DECODE:
            raise InvalidRequest(field="worker_id", reason="this worker only prefills")
        if standing.state is WorkerState.READY:
            raise GoElsewhere(worker=ask.wanted, reason="lost")
        raise WorkerNotReady(worker=ask.wanted, state=standing.state.value)

    def _depths(self, prompt: HashedPrompt) -> NDArray[np.intp]:
        """Blocks of the prompt that each slot's worker holds, or was promised and will hold soon."""
        size = self._slots.size
        held = self._index.match(prompt.keys).depths(size)
        promised = self._predictions.match(prompt.keys).depths(size)
        depths: NDArray[np.intp] = np.maximum(held, promised)
        return depths

    def _candidates(
        self, roster: Roster, pool: Loads, hits: Column, pool_hits: Column
    ) -> tuple[Candidates, PrefillPool]:
        """A worker that has measured nothing yet is taken for as good as the best of its model, so that it
        gets work and measures."""
        loads = self._view.loads(roster)
        best_rate = max(_most(loads.prefill_rate), _most(pool.prefill_rate))
        rate = best_rate or self._settings.assumed_prefill_rate
        step_s = _least(np.concatenate((loads.decode_step_s, pool.decode_step_s)))
        promised_sequences, promised_tokens = self._predictions.loads(roster.slots)
        candidates = Candidates(
            num_sequences=loads.num_sequences,
            seats=loads.seats,
            waiting_tokens=loads.waiting_tokens,
            free_blocks=loads.free_blocks,
            prefill_rate=_filled(loads.prefill_rate, rate),
            decode_step_s=_filled(loads.decode_step_s, step_s or self._settings.assumed_decode_step_s),
            hit_tokens=hits,
            promised_sequences=promised_sequences,
            promised_tokens=promised_tokens,
        )
        return candidates, PrefillPool(pool.job_tokens, _filled(pool.prefill_rate, rate), pool_hits)


def _prefixes(prefill: Roster, hits: Column) -> dict[str, int]:
    """Who holds most, and how much."""
    most = np.argsort(-hits, kind="stable")[:NUM_PREFIXES]
    return {prefill.workers[place]: int(hits[place]) for place in most if hits[place]}


def _without(places: Places, roster: Roster, workers: Collection[str]) -> Places:
    out = [roster.places[worker] for worker in workers if worker in roster.places]
    return places[~np.isin(places, out)] if out else places


def _filled(measured: Column, assumed: float) -> Column:
    """`assumed` where nothing was measured."""
    return np.where(measured > 0, measured, assumed)


def _most(measured: Column) -> float:
    return float(measured.max(initial=0.0))


def _least(measured: Column) -> float:
    """The least that was measured; 0 when nothing was."""
    least = float(np.where(measured > 0, measured, np.inf).min(initial=np.inf))
    return least if least < np.inf else 0.0
