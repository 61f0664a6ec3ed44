"""A rate over time: smoothed, with its trend.

Brown's double exponential smoothing, of amounts that come at any moments:

```
 once  = smoothed rate        level = 2 once - twice
 twice = once, smoothed       trend = (once - twice) / memory
```
A step of the rate is told to four fifths after half a memory; at a constant rate the noise is that of what
comes in half a memory. After a step the level shoots over: so a forecast stays near what came lately.
Source: R. G. Brown, Smoothing, Forecasting and Prediction of Discrete Time Series.
"""

from math import exp

RECENT_SHARE = 0.25
"""The share of the memory that counts as lately."""
SLACK = 1.25
"""How far beyond both the smoothed rate and the late one a forecast may be."""


class Flow:
    """Units: `memory_s` seconds after which what was counts a third. Rates are amounts a second."""

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._once = self._twice = self._recent = 0.0

    @property
    def mean(self) -> float:
        """Smoothed once: what a trend does not sway."""
        return self._once

    def note(self, amount: float, passed_s: float) -> None:
        """So much came in the `passed_s` seconds since the last note."""
        kept_recent = exp(-passed_s / (RECENT_SHARE * self._memory_s))
        self._recent = kept_recent * self._recent + (1.0 - kept_recent) * amount / passed_s
        kept = exp(-passed_s / self._memory_s)
        self._once = kept * self._once + (1.0 - kept) * amount / passed_s
        self._twice = kept * self._twice + (1.0 - kept) * self._once

    def forecast(self, ahead_s: float) -> float:
        """The rate that long from now, if its trend holds."""
        trend = (self._once - self._twice) / self._memory_s
        expected = 2.0 * self._once - self._twice + trend * ahead_s
        least, most = sorted((self._once, self._recent))
        return min(SLACK * most, max(least / SLACK, expected))
