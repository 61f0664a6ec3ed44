"""How one of the scored workers is chosen: by the mesh's cost, or by a plain rule to compare it with."""

import random
from typing import Literal

from router.columns import Column, Places

Policy = Literal["kv", "round_robin", "random", "least_loaded", "power_of_two"]


def choose(
    policy: Policy, total_s: Column, load: Column, eligible: Places, turn: int, draw: random.Random
) -> int:
    """One of `eligible`, at least one, in the order of workers' names.

    `turn` counts choices; ties fall at random.
    """
    if policy == "round_robin":
        return int(eligible[turn % len(eligible)])
    if policy == "random":
        return int(eligible[draw.randrange(len(eligible))])
    if policy == "least_loaded":
        return _least(load, eligible, draw)
    if policy == "power_of_two":
        two = draw.sample(range(len(eligible)), min(2, len(eligible)))
        return _least(load, eligible[two], draw)
    return _least(total_s, eligible, draw)


def _least(values: Column, eligible: Places, draw: random.Random) -> int:
    theirs = values[eligible]
    ties = eligible[theirs == theirs.min()]
    return int(ties[draw.randrange(len(ties))])
