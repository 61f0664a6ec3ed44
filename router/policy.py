"""How one of the scored workers is chosen: by the mesh's cost, or by a plain rule to compare it with."""

import random
from typing import Literal

import msgspec

from router.cost import Candidate, Terms

Policy = Literal["kv", "round_robin", "random", "least_loaded", "power_of_two"]


class Scored(msgspec.Struct, frozen=True):
    candidate: Candidate
    terms: Terms


def choose(policy: Policy, scored: list[Scored], turn: int, draw: random.Random) -> Scored:
    """One of `scored`, which has at least one; `turn` counts choices, and ties fall at random."""
    if policy == "round_robin":
        ordered = sorted(scored, key=lambda one: one.candidate.worker)
        return ordered[turn % len(ordered)]
    if policy == "random":
        return draw.choice(scored)
    if policy == "least_loaded":
        return _least_loaded(scored, draw)
    if policy == "power_of_two":
        return _least_loaded(draw.sample(scored, min(2, len(scored))), draw)
    return min(scored, key=lambda one: (one.terms.total_s, draw.random()))


def _least_loaded(scored: list[Scored], draw: random.Random) -> Scored:
    return min(scored, key=lambda one: (one.candidate.load, draw.random()))
