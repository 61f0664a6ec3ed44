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
from services.planner.picture import Move, Picture, WorkerSeen
from services.planner.plan_rules import PlanRules
from services.planner.rate_match import Headroom, Split, choose_split, wanted_workers
from services.planner.step import Step, find_slow, find_step, is_below_floor, moved

Action = Literal["hold", "begin", "take_back"]
MOST_DOUBLINGS = 5


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
        found = find_step(picture, self._rules)
        self._wish.note(found.step, now_s)
        if not found.step:
            return _hold(found, found.reason)
        if why := self._why_not_yet(found, picture.noise, now_s):
            return _hold(found, why)
        worker = self._choose_worker(picture.workers, found.step, now_s)
        if worker is None:
            return _hold(found, "no worker of the other role has stayed long enough")
        move = Move(worker, Role.PREFILL if found.step > 0 else Role.DECODE)
        return Decision("begin", found.reason, move, found.now, found.after, found.threshold)

    def _why_not_yet(self, found: Step, noise: float, now_s: float) -> str:
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
        if is_below_floor(after, self._rules.floor, move.step):
            return Decision("take_back", "too few would be left in its role", move)
        before = moved(after, -move.step)
        if picture.match is None or is_below_floor(before, self._rules.floor, -move.step):
            return Decision("hold", "a move is under way", move)
        now, then = picture.match.headroom(before), picture.match.headroom(after)
        relief = self._rules.relief_above
        if then.least < now.least:
            return Decision("take_back", "it would make things worse", move, now, then, 1.0)
        if relief < now.least < inf and not find_slow(picture).reason:
            return Decision("take_back", "there is plenty without it", move, now, then, relief)
        return Decision("hold", "a move is under way", move, now, then)

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


def _hold(found: Step, reason: str) -> Decision:
    return Decision("hold", reason, None, found.now, found.after, found.threshold)


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
