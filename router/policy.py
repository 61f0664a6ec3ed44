"""How one of the scored workers is chosen: by the mesh's cost, or by a plain rule to compare it with."""

import random
from typing import Literal

from router.columns import Column

Policy = Literal["kv", "round_robin", "random", "least_loaded", "power_of_two"]


def choose(
    policy: Policy, total_s: Column, load: Column, eligible: list[int], turn: int, draw: random.Random
) -> int:
    """One of `eligible`, which are places in the columns, at least one and in the order of workers' names.

    `turn` counts choices; ties fall at random.
    """
    if policy == "round_robin":
        return eligible[turn % len(eligible)]
    if policy == "random":
        return draw.choice(eligible)
    if policy == "least_loaded":
        return _least(load, eligible, draw)
    if policy == "power_of_two":
        return _least(load, draw.sample(eligible, min(2, len(eligible))), draw)
    return _least(total_s, eligible, draw)


def _least(values: Column, eligible: list[int], draw: random.Random) -> int:
    theirs = values[eligible].tolist()
    least = min(theirs)
    return draw.choice([place for place, value in zip(eligible, theirs, strict=True) if value == least])
