"""Latencies as counts by bucket, and the quantiles that can be read from them."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from proto.traffic import LATENCY_BOUNDS_S


def add_counts(all_counts: Iterable[Sequence[int]]) -> list[int]:
    """Bucket by bucket; what is left out at the end of some is 0."""
    return [sum(counts) for counts in zip_longest(*all_counts, fillvalue=0)]


def subtract_counts(counts: Sequence[int], before: Sequence[int]) -> list[int]:
    """What came since: counts only grow."""
    return [now - then for now, then in zip_longest(counts, before, fillvalue=0)]


def quantile_s(counts: Sequence[int], quantile: float) -> float:
    """The upper bound of the bucket in which the quantile lies; 0 when nothing was counted."""
    due = quantile * sum(counts)
    below = 0
    for bucket, count in enumerate(counts):
        below += count
        if count and below >= due:
            return LATENCY_BOUNDS_S[min(bucket, len(LATENCY_BOUNDS_S) - 1)]
    return 0.0
