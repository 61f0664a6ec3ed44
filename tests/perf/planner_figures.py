"""What the planner's benchmark computes from readings and roles: good shares, recoveries, moves. Pure.

Units: seconds of the trace, from its first phase on.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from services.replay.reading import Reading
from services.replay.report import Limits, is_good

GOOD_SHARE = 0.9
"""A load is served well while so many of its requests keep both limits."""
LEAST_IN_WINDOW = 5


class Asked(msgspec.Struct, frozen=True):
    """One request: when it came, and how it went. `ttft_s` and `itl_s` are 0 for one that failed."""

    at_s: float
    is_good: bool
    ttft_s: float = 0.0
    itl_s: float = 0.0


class RolesAt(msgspec.Struct, frozen=True):
    """So many workers prefill from `at_s` on."""

    at_s: float
    num_prefill: int


def list_asked(readings: Sequence[Reading], begin_s: float, limits: Limits, speed: float) -> list[Asked]:
    """In the trace's order. `begin_s`: the trace's beginning on the clock of the readings."""
    return [
        Asked(at_s, is_good=False)
        if reading.error
        else Asked(at_s, is_good(reading, limits, speed), speed * reading.ttft_s, speed * reading.mean_itl_s)
        for reading in readings
        for at_s in [speed * (reading.due_s - begin_s)]
    ]


def good_share(asked: Sequence[Asked]) -> float:
    """0 where nothing was asked."""
    return sum(one.is_good for one in asked) / len(asked) if asked else 0.0


def between(asked: Sequence[Asked], from_s: float, until_s: float) -> list[Asked]:
    return [one for one in asked if from_s <= one.at_s < until_s]


def find_recovery_s(asked: Sequence[Asked], step_s: float, phase_s: float, window_s: float) -> float:
    """How long after the step of the load at `step_s` the first window begins in which `GOOD_SHARE` of all
    requests are good again; `phase_s` where there is none within the phase."""
    phase = between(asked, step_s, step_s + phase_s)
    for first in phase:
        window = between(phase, first.at_s, first.at_s + window_s)
        if len(window) >= LEAST_IN_WINDOW and good_share(window) >= GOOD_SHARE:
            return first.at_s - step_s
    return phase_s


def roles_between(history: Sequence[RolesAt], from_s: float, until_s: float) -> list[RolesAt]:
    """What changed in that time, after what was so at its beginning."""
    before = [each for each in history if each.at_s <= from_s]
    start = [RolesAt(from_s, before[-1].num_prefill)] if before else []
    return start + [each for each in history if from_s < each.at_s < until_s]


def count_moves(history: Sequence[RolesAt], from_s: float, until_s: float) -> int:
    """Changes of a role in that time; each changes the number of prefill workers by one."""
    told = roles_between(history, from_s, until_s)
    return sum(abs(late.num_prefill - early.num_prefill) for early, late in pairwise(told))
