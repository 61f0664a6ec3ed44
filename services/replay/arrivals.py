"""When generated requests come: independently of one another, at a steady rate or in bursts."""

import random
from collections.abc import Iterator

import msgspec


class Bursts(msgspec.Struct, frozen=True):
    """Each `period_s` begins with a burst of `burst_s` in which requests come `factor` times as often."""

    period_s: float = 60.0
    burst_s: float = 5.0
    factor: float = 10.0

    def is_burst(self, at_s: float) -> bool:
        return at_s % self.period_s < self.burst_s

    def quiet_rate(self, mean_per_s: float) -> float:
        """The rate between bursts that makes `mean_per_s` of the whole."""
        return mean_per_s * self.period_s / (self.period_s + (self.factor - 1) * self.burst_s)


def steady(rate_per_s: float, draw: random.Random) -> Iterator[float]:
    """Times in seconds, without end: a Poisson process."""
    at_s = 0.0
    while True:
        at_s += draw.expovariate(rate_per_s)
        yield at_s


def bursty(mean_per_s: float, bursts: Bursts, draw: random.Random) -> Iterator[float]:
    """Times in seconds, without end.

    Source: thinning, Lewis and Shedler 1979: quiet times keep one in `factor` of what a burst's rate gives.
    """
    for at_s in steady(bursts.quiet_rate(mean_per_s) * bursts.factor, draw):
        if bursts.is_burst(at_s) or draw.random() * bursts.factor < 1:
            yield at_s
