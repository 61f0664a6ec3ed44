"""One worker more in a role and one fewer in the other: whether it is better, and how surely. Pure."""

from collections.abc import Sequence
from math import inf

import msgspec

from services.planner.picture import Picture
from services.planner.plan_rules import PlanRules
from services.planner.rate_match import Headroom, Match, Split

NOISE_WEIGHT = 2.0
"""What is better by less than so many times the noise has to be so for longer."""


class Step(msgspec.Struct, frozen=True):
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


def moved(split: Split, step: int) -> Split:
    return Split(split.prefill + step, split.decode - step)


def is_below_floor(split: Split, floor: Split, step: int) -> bool:
    """Whether too few are left in the role that `step` took one from."""
    return split.prefill < floor.prefill if step < 0 else split.decode < floor.decode


def find_step(picture: Picture, rules: PlanRules) -> Step:
    """The better neighbour of the present split, where there is a need of one."""
    if lacking := _lacking(picture.split, rules.floor):
        return Step(lacking, "fewer than there shall be at least")
    if picture.match is None:
        return Step(0, "nothing is measured yet")
    now = picture.match.headroom(picture.split)
    is_short = now.least < rules.short_below
    if now.least == inf or not (is_short or find_slow(picture).reason):
        return Step(0, "the load is met", now)
    return _best_step(picture, picture.match, rules, now, is_short)


def _best_step(picture: Picture, match: Match, rules: PlanRules, now: Headroom, is_short: bool) -> Step:
    split, slow, threshold = picture.split, find_slow(picture), 1.0 + rules.least_gain
    wanted = (1, -1) if is_short else slow.steps
    able = [step for step in wanted if not is_below_floor(moved(split, step), rules.floor, step)]
    if not able:
        return Step(0, "the other role has no worker to spare", now, None, threshold)
    best = max(able, key=lambda step: match.headroom(moved(split, step)).least)
    after = match.headroom(moved(split, best))
    if after.least <= now.least or after.least < threshold * now.least:
        return Step(0, "no other split is that much better", now, after, threshold)
    reason = "too little headroom" if is_short else slow.reason
    is_felt = now.least < 1.0 and best in slow.steps
    return Step(best, reason, now, after, threshold, is_felt)


def _lacking(split: Split, floor: Split) -> int:
    """The step towards the least numbers, which somebody's end may have left; decode first."""
    if split.decode < floor.decode and split.prefill:
        return -1
    if split.prefill < floor.prefill and split.decode > floor.decode:
        return 1
    return 0


class Slow(msgspec.Struct, frozen=True):
    """Which latency is over its limit, in words, and the steps that may help it."""

    reason: str = ""
    steps: Sequence[int] = ()


def find_slow(picture: Picture) -> Slow:
    """A first token may wait for either role: for its prompt, or for a place."""
    match = picture.match
    if match is None:
        return Slow()
    if picture.ttft_s > match.limits.ttft_s:
        return Slow("first tokens come too late", (1, -1))
    return Slow("tokens come too slowly", (-1,)) if picture.itl_s > match.limits.itl_s else Slow()
