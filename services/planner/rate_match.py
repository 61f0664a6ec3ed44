"""Rate matching: what so many workers of a role can take within the limits, against what comes.

```
 prefill   a prompt of u tokens takes S = u / rate, and waits its turn among n workers:
           wait = S / n · ρ^(√(2(n+1)) - 1) / (1 - ρ) · ln 1/(1-q)      ρ: share of the time that they compute
           capacity = n · rate · the largest ρ at which S + wait is within the TTFT limit
 decode    b sequences a step take base + b · more;  b as large as the ITL limit, places and blocks allow
           capacity = n · b / step(b)
 headroom  capacity / load, of either role; the best split has the most of what it has least of
 without prefill workers   prompts may take the share 1 - q of decode workers' time, and take it from answers
```
Source of the wait: H. Sakasegawa, An approximation formula L_q ≃ αρ^β/(1-ρ), 1977; its tail is taken to fall
as the mean says. Pure.
"""

from collections.abc import Callable
from math import inf, log, sqrt

import msgspec

from services.planner.step_cost import StepCost

MOST_WORKERS = 1024
QUEUE_SHARE = 0.5
"""Where a prompt alone takes the whole limit, waits of this share of its own time are aimed at."""
NUM_HALVINGS = 30


class Split(msgspec.Struct, frozen=True, order=True):
    """How many workers have which role."""

    prefill: int
    decode: int

    @property
    def num_workers(self) -> int:
        return self.prefill + self.decode


class Limits(msgspec.Struct, frozen=True):
    """What clients shall feel at most, all but a share of 1 - `quantile` of them; and how much of the time
    workers are to compute at most. Units: seconds."""

    ttft_s: float
    itl_s: float
    quantile: float = 0.9
    max_busy: float = 0.9


class Load(msgspec.Struct, frozen=True):
    """What comes. Units: tokens a second, prompts' without what is cached; `prompt_tokens` a prompt has."""

    prompt_rate: float
    output_rate: float
    prompt_tokens: float


class Capability(msgspec.Struct, frozen=True):
    """What one worker does. Units: `prefill_rate` tokens a second; `most_sequences` by places and blocks."""

    prefill_rate: float
    step: StepCost
    most_sequences: float


class Headroom(msgspec.Struct, frozen=True):
    """Capacity over load, of each role: under 1 it falls behind; `inf` where there is no load."""

    prefill: float
    decode: float

    @property
    def least(self) -> float:
        return min(self.prefill, self.decode)


class Match(msgspec.Struct, frozen=True):
    """One model's load against what one of its workers can do."""

    load: Load
    capability: Capability
    limits: Limits

    def headroom(self, split: Split) -> Headroom:
        if not split.prefill:
            return self._mixed_headroom(split.decode)
        prefill = _ratio(self.prefill_capacity(split.prefill), self.load.prompt_rate)
        return Headroom(prefill, _ratio(self.decode_capacity(split.decode), self.load.output_rate))

    def _mixed_headroom(self, num_workers: int) -> Headroom:
        """Workers that decode and do their own prefill by turns: so long all their tokens are late, which may
        be the share of the time that the limits leave."""
        most_rate = num_workers * self.capability.prefill_rate
        left = max(0.0, 1.0 - 1.0 / _ratio(most_rate, self.load.prompt_rate)) if most_rate else 0.0
        prefill = _ratio((1.0 - self.limits.quantile) * most_rate, self.load.prompt_rate)
        return Headroom(prefill, _ratio(left * self.decode_capacity(num_workers), self.load.output_rate))

    def decode_capacity(self, num_workers: int) -> float:
        """Tokens a second within the ITL limit."""
        step, limits = self.capability.step, self.limits
        most = min(step.most_sequences(limits.itl_s), self.capability.most_sequences)
        return num_workers * limits.max_busy * most / step.step_s(most)

    def prefill_capacity(self, num_workers: int) -> float:
        """Tokens of prompts a second within the TTFT limit."""
        if not num_workers:
            return 0.0
        return num_workers * self.capability.prefill_rate * self.most_busy(num_workers)

    def most_busy(self, num_workers: int) -> float:
        """The share of the time that prefill workers may compute, so that what waits for them is in time."""
        own_s = self.load.prompt_tokens / self.capability.prefill_rate
        wait_s = max(self.limits.ttft_s - own_s, QUEUE_SHARE * own_s)
        tail = log(1.0 / (1.0 - self.limits.quantile))

        def is_in_time(busy: float) -> bool:
            return tail * mean_wait_s(num_workers, busy, own_s) <= wait_s

        return _largest(is_in_time, self.limits.max_busy)


def mean_wait_s(num_workers: int, busy: float, own_s: float) -> float:
    """How long one waits for the first free of `num_workers` that are busy for this share of the time."""
    queued: float = busy ** (sqrt(2.0 * (num_workers + 1)) - 1.0)
    return own_s * queued / (num_workers * (1.0 - busy))


def _largest(holds: Callable[[float], bool], most: float) -> float:
    """The largest number up to `most` for which `holds`, which holds near 0 and up to some point."""
    if holds(most):
        return most
    low, high = 0.0, most
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _ratio(capacity: float, load: float) -> float:
    return capacity / load if load > 0.0 else inf


def choose_split(match: Match, num_workers: int, floor: Split) -> Split:
    """The split of so many workers with the most headroom where it has least; of those alike, the one with
    the fewest prefill workers. `floor` holds where there are enough for it, decode first."""
    least = min(floor.prefill, max(0, num_workers - floor.decode))
    most = max(least, num_workers - floor.decode)
    splits = [Split(prefill, num_workers - prefill) for prefill in range(least, most + 1)]
    return max(splits, key=lambda split: (match.headroom(split).least, -split.prefill))


def wanted_workers(match: Match, floor: Split, spare: float) -> Split:
    """How many of each role the load wants, however many there are, to have headroom of `spare`.

    At most `MOST_WORKERS` of each.
    """
    wanted_prefill, wanted_decode = spare * match.load.prompt_rate, spare * match.load.output_rate
    prefill = _smallest(lambda num: match.prefill_capacity(num) >= wanted_prefill, floor.prefill)
    decode = _smallest(lambda num: match.decode_capacity(num) >= wanted_decode, floor.decode)
    return Split(prefill, decode)


def _smallest(is_enough: Callable[[int], bool], least: int) -> int:
    """The smallest number from `least` on that `is_enough`, as are all larger ones."""
    low, high = least, MOST_WORKERS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low
