"""A mesh in pure time: workers of a stated speed under a stated load, told to a planner by beats.

Requests come by chance and flow on as their tokens are computed; nothing is started and nobody waits.
"""

import random
from bisect import bisect_left
from collections.abc import Callable

import msgspec

from proto.reports import Beat, LoadReport
from proto.roles import Order, Role, WorkerState
from proto.traffic import LATENCY_BOUNDS_S, ModelTraffic
from services.planner.observation import PLANNER, Observation
from services.planner.picture import Move
from services.planner.planning import Decision, Planning
from services.planner.rate_match import Split
from services.planner.settings import PlannerSettings

MODEL = "m"
PREFILL_RATE = 20_000.0
BASE_S, SEQUENCE_S = 0.008, 0.0005
PLACES = 64
MOVE_S = 1.0
NUM_PARTS = 10  # of a second


class Mix(msgspec.Struct, frozen=True):
    """Requests a second, and their mean sizes in tokens."""

    rate: float
    prompt_tokens: float
    answer_tokens: float


class _Worker(msgspec.Struct):
    name: str
    role: Role
    epoch: int = 1
    busy_until_s: float = 0.0


class World:
    """Eight workers, or as told. `step` lets a second pass and has the planner look."""

    def __init__(self, settings: PlannerSettings, split: Split, seed: int = 0) -> None:
        self.now_s = 0.0
        self.moves: list[tuple[float, Move]] = []
        self.decisions: list[Decision] = []
        self.settings = settings
        self._random = random.Random(seed)
        self._observation = Observation(settings.observation_rules)
        self._planning = Planning(settings.plan_rules)
        roles = [Role.PREFILL] * split.prefill + [Role.DECODE] * split.decode
        self.workers = [_Worker(f"w-{index}", role) for index, role in enumerate(roles)]
        self._under_way: Move | None = None
        self._to_prefill = self._to_decode = 0.0  # tokens of prompts, sequences
        self._running = self._step_s = 0.0
        self._traffic = ModelTraffic(MODEL)
        self._ttft = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._itl = [0] * (len(LATENCY_BOUNDS_S) + 1)

    @property
    def split(self) -> Split:
        prefill = sum(worker.role is Role.PREFILL for worker in self.workers)
        return Split(prefill, len(self.workers) - prefill)

    def run(self, mix: Mix | Callable[[float], Mix], seconds: int) -> None:
        for _ in range(seconds):
            self.step(mix(self.now_s) if callable(mix) else mix)

    def step(self, mix: Mix) -> None:
        self.now_s += 1.0
        self._serve(mix)
        self._end_move()
        for worker in self.workers:
            self._observation.hear(worker.name, self._report(worker), self.now_s)
        beat = Beat("f", "frontend", "f", traffic=[self._traffic])
        self._observation.hear("f", beat, self.now_s)
        self._plan()

    def _serve(self, mix: Mix) -> None:
        num = self._poisson(mix.rate)
        sizes = [round(self._random.expovariate(1 / mix.prompt_tokens)) for _ in range(num)]
        begun = ended = tokens = 0.0
        for _ in range(NUM_PARTS):
            self._to_prefill += sum(sizes) / NUM_PARTS
            begun += self._prefill(mix)
            more_tokens = self._decode()
            tokens += more_tokens
            more_ended = min(self._running, more_tokens / mix.answer_tokens)
            self._running -= more_ended
            ended += more_ended
        self._count(num, sum(sizes), begun, ended, tokens, mix)

    def _prefill(self, mix: Mix) -> float:
        """How many sequences begin to decode."""
        done = min(self._to_prefill, self._num_able(Role.PREFILL) * PREFILL_RATE / NUM_PARTS)
        self._to_prefill -= done
        self._to_decode += done / mix.prompt_tokens
        places = self._num_able(Role.DECODE) * PLACES
        begun = min(self._to_decode, max(0.0, places - self._running))
        self._to_decode -= begun
        self._running += begun
        return begun

    def _decode(self) -> float:
        """How many tokens come."""
        self._step_s = BASE_S + SEQUENCE_S * self._running / max(1, self._num_able(Role.DECODE))
        return self._running / self._step_s / NUM_PARTS

    def _count(
        self, num: int, prompt_tokens: int, begun: float, ended: float, tokens: float, mix: Mix
    ) -> None:
        prefill_s = self._to_prefill / (PREFILL_RATE * max(1, self._num_able(Role.PREFILL)))
        ttft_s = prefill_s + self._to_decode / max(1.0, ended) + mix.prompt_tokens / PREFILL_RATE
        self._ttft[bisect_left(LATENCY_BOUNDS_S, ttft_s)] += round(begun)
        self._itl[bisect_left(LATENCY_BOUNDS_S, self._step_s)] += round(tokens)
        traffic = self._traffic
        self._traffic = msgspec.structs.replace(
            traffic,
            num_begun=traffic.num_begun + num,
            num_ended=traffic.num_ended + round(ended),
            prompt_tokens=traffic.prompt_tokens + prompt_tokens,
            output_tokens=traffic.output_tokens + round(tokens),
            answer_tokens=traffic.answer_tokens + round(round(ended) * mix.answer_tokens),
            ttft_counts=list(self._ttft),
            itl_counts=list(self._itl),
            num_waiting=round(self._to_prefill / mix.prompt_tokens + self._to_decode),
            waiting_tokens=round(self._to_prefill + self._to_decode * mix.prompt_tokens),
        )

    def _poisson(self, mean: float) -> int:
        num, at = 0, self._random.expovariate(1.0)
        while at < mean:
            num, at = num + 1, at + self._random.expovariate(1.0)
        return num

    def _num_able(self, role: Role) -> int:
        return sum(each.role is role and each.busy_until_s <= self.now_s for each in self.workers)

    def _report(self, worker: _Worker) -> LoadReport:
        is_decode = worker.role is Role.DECODE
        running = round(self._running / max(1, self._num_able(Role.DECODE))) if is_decode else 0
        return LoadReport(
            worker=worker.name,
            model=MODEL,
            incarnation="life",
            epoch=worker.epoch,
            role=worker.role,
            state=WorkerState.READY if worker.busy_until_s <= self.now_s else WorkerState.DRAINING,
            num_running=running,
            max_sequences=PLACES,
            prefill_rate=0.0 if is_decode else PREFILL_RATE,
            decode_step_s=self._step_s if is_decode else 0.0,
        )

    def _plan(self) -> None:
        picture = self._observation.look(self.now_s)[MODEL]
        decision = self._planning.decide(picture, self.now_s)
        self.decisions.append(decision)
        if decision.action == "begin" and decision.move is not None:
            self._begin(decision.move)

    def _begin(self, move: Move) -> None:
        self.moves.append((self.now_s, move))
        worker = next(each for each in self.workers if each.name == move.worker)
        worker.busy_until_s = self.now_s + MOVE_S
        self._under_way = move
        self._observation.note_orders(
            {move.worker: Order(move.worker, move.to, worker.epoch + 1, placed_by=PLANNER)}
        )

    def _end_move(self) -> None:
        move = self._under_way
        if move is None:
            return
        worker = next(each for each in self.workers if each.name == move.worker)
        if worker.busy_until_s <= self.now_s:
            worker.role, worker.epoch = move.to, worker.epoch + 1
            self._under_way = None
            self._planning.note_done(move, self.now_s)
            self._observation.forget_latencies(MODEL)
