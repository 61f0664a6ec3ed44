"""Which worker should take which other role, if any: one model's plan. Pure; the caller says what time it is.

```
 too little headroom (under `short_below`), or a latency over its limit      first threshold: is there a need?
   and a worker more in the other role gives more headroom, by `least_gain`  second: is it worth it?
     for `confirm_s`, and the longer the more this may be mere noise and no client feels it
     not within `cool_down_s` of a move the other way ─► the worker that it costs least moves
 on its way, but it would make things worse, or there is plenty (over `relief_above`) ─► it is taken back
```
What is under way counts as done, so a plan is made of many moves, each of which must still be right when its
turn comes. Nothing is begun or taken back while a report is missing.
"""

from collections.abc import Sequence
from math import inf
from typing import Literal

import msgspec

from proto.roles import Role
from services.planner.rate_match import Headroom, Match, Split, choose_split, wanted_workers

Action = Literal["hold", "begin", "take_back"]
NOISE_WEIGHT = 2.0
"""What is better by less than so many times the noise has to be so for longer."""
MOST_DOUBLINGS = 5


class PlanRules(msgspec.Struct, frozen=True):
    """The thresholds. Units: seconds; headroom and gain as ratios. `memory_s` is that of what is measured:
    its noise lasts about so long."""

    floor: Split
    short_below: float
    relief_above: float
    least_gain: float
    memory_s: float
    confirm_s: float
    min_stay_s: float
    cool_down_s: float
    pause_s: float
    retry_s: float


class WorkerSeen(msgspec.Struct, frozen=True):
    """A ready worker. Units: `since_s` on the caller's clock, when it was first seen in its role."""

    worker: str
    role: Role
    since_s: float
    num_in_hand: int = 0


class Move(msgspec.Struct, frozen=True):
    worker: str
    to: Role

    @property
    def step(self) -> int:
        """How many prefill workers more there are afterwards."""
        return 1 if self.to is Role.PREFILL else -1


class UnderWay(msgspec.Struct, frozen=True):
    """An order that is not fulfilled yet; `is_ours`: a planner's, not an operator's."""

    move: Move
    is_ours: bool


class Picture(msgspec.Struct, frozen=True):
    """One model as it is seen: its ready workers, but for those under way; what comes, and what it feels.

    `obstacle` says why nothing may be done on it, in a few words: a report is missing. `match` is None until
    something was measured. Latencies in seconds, 0 while unknown; `noise` as a share.
    """

    workers: Sequence[WorkerSeen] = ()
    under_way: Sequence[UnderWay] = ()
    match: Match | None = None
    noise: float = 0.0
    ttft_s: float = 0.0
    itl_s: float = 0.0
    obstacle: str = ""

    @property
    def split(self) -> Split:
        """With what is under way done."""
        prefill = sum(each.role is Role.PREFILL for each in self.workers)
        coming = sum(each.move.to is Role.PREFILL for each in self.under_way)
        all_workers = len(self.workers) + len(self.under_way)
        return Split(prefill + coming, all_workers - prefill - coming)


class Decision(msgspec.Struct, frozen=True):
    """What to do, why in a few words, and what it rests on: the headroom as it is and as it would be, and
    how much more there had to be."""

    action: Action
    reason: str
    move: Move | None = None
    now: Headroom | None = None
    after: Headroom | None = None
    threshold: float = 0.0


class Planning:
    """What one model's plan remembers from look to look."""

    def __init__(self, rules: PlanRules) -> None:
        self._rules = rules
        self._wish = _Wish()
        self._last_step = 0
        self._last_ended_s = -inf
        self._failures: dict[str, _Failures] = {}

    def note_done(self, move: Move, now_s: float) -> None:
        self._last_ended_s, self._last_step = now_s, move.step
        self._failures.pop(move.worker, None)

    def note_taken_back(self, now_s: float) -> None:
        self._last_ended_s = now_s

    def note_failed(self, move: Move, now_s: float) -> None:
        """It is left alone for a while, which doubles with each failure in a row."""
        self._last_ended_s = now_s
        most_s = self._rules.retry_s * 2**MOST_DOUBLINGS
        self._failures = {
            worker: each for worker, each in self._failures.items() if now_s < each.retry_at_s + most_s
        }
        num = self._failures[move.worker].num if move.worker in self._failures else 0
        self._failures[move.worker] = _Failures(num + 1, now_s + min(most_s, self._rules.retry_s * 2**num))

    def best_split(self, picture: Picture) -> Split | None:
        """What the load as it is wants of the workers that are there; None while nothing is known of it."""
        match = picture.match
        if match is None or match.headroom(picture.split).least == inf:
            return None
        return choose_split(match, picture.split.num_workers, self._rules.floor)

    def wanted(self, picture: Picture) -> Split | None:
        """What the load wants however many there are."""
        if picture.match is None:
            return None
        return wanted_workers(picture.match, self._rules.floor, self._rules.short_below)

    def decide(self, picture: Picture, now_s: float) -> Decision:
        if picture.obstacle:
            return Decision("hold", picture.obstacle)
        if picture.under_way:
            return self._decide_under_way(picture)
        found = self._find_step(picture)
        self._wish.note(found.step, now_s)
        if not found.step:
            return found.hold(found.reason)
        if why := self._why_not_yet(found, picture.noise, now_s):
            return found.hold(why)
        worker = self._choose_worker(picture.workers, found.step, now_s)
        if worker is None:
            return found.hold("no worker of the other role has stayed long enough")
        move = Move(worker, Role.PREFILL if found.step > 0 else Role.DECODE)
        return Decision("begin", found.reason, move, found.now, found.after, found.threshold)

    def _why_not_yet(self, found: "_Step", noise: float, now_s: float) -> str:
        rules, is_other_way = self._rules, self._last_step == -found.step
        if now_s < self._last_ended_s + rules.pause_s:
            return "the last move has only just ended"
        if is_other_way and now_s < self._last_ended_s + rules.cool_down_s:
            return "a move the other way was a short while ago"
        if self._wish.lasted_s < found.confirm_s(rules, noise):
            return "it is to be seen whether this lasts"
        return ""

    def _decide_under_way(self, picture: Picture) -> Decision:
        ours = [each.move for each in picture.under_way if each.is_ours]
        if not ours:
            return Decision("hold", "an operator's order is under way")
        move, after = ours[0], picture.split
        if self._is_below_floor(after, move.step):
            return Decision("take_back", "too few would be left in its role", move)
        before = moved(after, -move.step)
        if picture.match is None or self._is_below_floor(before, -move.step):
            return Decision("hold", "a move is under way", move)
        now, then = picture.match.headroom(before), picture.match.headroom(after)
        relief = self._rules.relief_above
        if then.least < now.least:
            return Decision("take_back", "it would make things worse", move, now, then, 1.0)
        if relief < now.least < inf and not _slow(picture).reason:
            return Decision("take_back", "there is plenty without it", move, now, then, relief)
        return Decision("hold", "a move is under way", move, now, then)

    def _is_below_floor(self, split: Split, step: int) -> bool:
        """Whether too few are left in the role that `step` took one from."""
        floor = self._rules.floor
        return split.prefill < floor.prefill if step < 0 else split.decode < floor.decode

    def _find_step(self, picture: Picture) -> "_Step":
        """The better neighbour of the present split, where there is a need of one."""
        rules, split, match = self._rules, picture.split, picture.match
        if lacking := _lacking(split, rules.floor):
            return _Step(lacking, "fewer than there shall be at least")
        if match is None:
            return _Step(0, "nothing is measured yet")
        now, slow = match.headroom(split), _slow(picture)
        is_short = now.least < rules.short_below
        if now.least == inf or not (is_short or slow.reason):
            return _Step(0, "the load is met", now)
        wanted = (1, -1) if is_short else slow.steps
        able = [step for step in wanted if not self._is_below_floor(moved(split, step), step)]
        threshold = 1.0 + rules.least_gain
        if not able:
            return _Step(0, "the other role has no worker to spare", now, None, threshold)
        best = max(able, key=lambda step: match.headroom(moved(split, step)).least)
        is_felt = now.least < 1.0 and best in slow.steps
        after = match.headroom(moved(split, best))
        if after.least <= now.least or after.least < threshold * now.least:
            return _Step(0, "no other split is that much better", now, after, threshold)
        reason = "too little headroom" if is_short else slow.reason
        return _Step(best, reason, now, after, threshold, is_felt)

    def _choose_worker(self, workers: Sequence[WorkerSeen], step: int, now_s: float) -> str | None:
        """Whom it costs least: who has least in hand; of those alike, who has had its role longest."""
        role = Role.DECODE if step > 0 else Role.PREFILL
        able = [each for each in workers if each.role is role and self._may_move(each, now_s)]
        best = min(able, key=lambda each: (each.num_in_hand, each.since_s, each.worker), default=None)
        return None if best is None else best.worker

    def _may_move(self, seen: WorkerSeen, now_s: float) -> bool:
        failures = self._failures.get(seen.worker)
        is_resting = failures is not None and now_s < failures.retry_at_s
        return now_s >= seen.since_s + self._rules.min_stay_s and not is_resting


class _Failures(msgspec.Struct, frozen=True):
    """So many in a row. Units: `retry_at_s` on the caller's clock."""

    num: int
    retry_at_s: float


class _Wish:
    """A step that is wanted look after look. A look that does not want it takes back as much as one adds."""

    def __init__(self) -> None:
        self.lasted_s = 0.0
        self._step = 0
        self._noted_s = inf

    def note(self, step: int, now_s: float) -> None:
        passed_s, self._noted_s = max(0.0, now_s - self._noted_s), now_s
        if step and step == self._step:
            self.lasted_s += passed_s
            return
        self.lasted_s = max(0.0, self.lasted_s - passed_s)
        if step and not self.lasted_s:
            self._step = step


class _Step(msgspec.Struct, frozen=True):
    """One prefill worker more (1), one fewer (-1), or neither (0), and why. `is_felt`: a role falls behind,
    and clients feel what this may help."""

    step: int
    reason: str
    now: Headroom | None = None
    after: Headroom | None = None
    threshold: float = 0.0
    is_felt: bool = False

    def confirm_s(self, rules: PlanRules, noise: float) -> float:
        """How long it must have been right. That a role is short may be noise, unless it is felt, and so may
        be that the one which gives a worker is still better off: both have to outlast it."""
        if self.now is None or self.after is None or self.now.least <= 0.0:
            return rules.confirm_s
        least = self.now.least
        giver = self.after.decode if self.step > 0 else self.after.prefill
        margin = giver / least - 1.0
        if least < rules.short_below and not self.is_felt:
            margin = min(margin, rules.short_below / least - 1.0)
        share = NOISE_WEIGHT * noise / margin
        return rules.confirm_s + rules.memory_s * max(0.0, share**2 - 1.0)

    def hold(self, reason: str) -> Decision:
        return Decision("hold", reason, None, self.now, self.after, self.threshold)


def moved(split: Split, step: int) -> Split:
    return Split(split.prefill + step, split.decode - step)


def _lacking(split: Split, floor: Split) -> int:
    """The step towards the least numbers, which somebody's end may have left; decode first."""
    if split.decode < floor.decode and split.prefill:
        return -1
    if split.prefill < floor.prefill and split.decode > floor.decode:
        return 1
    return 0


class _Slow(msgspec.Struct, frozen=True):
    """Which latency is over its limit, in words, and the steps that may help it."""

    reason: str = ""
    steps: Sequence[int] = ()


def _slow(picture: Picture) -> _Slow:
    """A first token may wait for either role: for its prompt, or for a place."""
    match = picture.match
    if match is None:
        return _Slow()
    if picture.ttft_s > match.limits.ttft_s:
        return _Slow("first tokens come too late", (1, -1))
    return _Slow("tokens come too slowly", (-1,)) if picture.itl_s > match.limits.itl_s else _Slow()
