"""What a replay shows: the figures of one server, as a pure function of its readings."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from services.replay.reading import Reading


class Limits(msgspec.Struct, frozen=True):
    """What a good answer keeps to. ITL: the mean between the tokens of the answer."""

    ttft_s: float = 1.0
    itl_s: float = 0.1


class Spread(msgspec.Struct, frozen=True):
    """Units: seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class Report(msgspec.Struct, frozen=True):
    """The figures of one server. A spread is None where nothing was measured.

    `errors` counts failed requests by type; `shares` are of the answered requests, by worker; `hit_rate` is
    the share of their prompt tokens that were cached; `good_share` of all requests, failed ones too.

    Units: the trace's seconds. `duration_s` from the first request's time to the last answer's end; `late_s`
    how long after its time a request was sent, which is the player's own fault.
    """

    label: str
    num_requests: int
    num_answered: int
    errors: dict[str, int]
    duration_s: float
    requests_per_s: float
    tokens_per_s: float
    ttft_s: Spread | None
    itl_s: Spread | None
    late_s: Spread | None
    hit_rate: float
    remote_share: float
    good_share: float
    goodput_per_s: float
    shares: dict[str, float]


def make_report(label: str, readings: Sequence[Reading], limits: Limits, speed: float = 1.0) -> Report:
    """`speed`: how many of the trace's seconds one of the readings' is."""
    answered = [reading for reading in readings if not reading.error]
    duration_s = speed * _span_s(readings)
    num_good = sum(is_good(reading, limits, speed) for reading in answered)
    return Report(
        label=label,
        num_requests=len(readings),
        num_answered=len(answered),
        errors=dict(Counter(reading.error for reading in readings if reading.error).most_common()),
        duration_s=duration_s,
        requests_per_s=_ratio(len(answered), duration_s),
        tokens_per_s=_ratio(sum(reading.num_out for reading in answered), duration_s),
        ttft_s=spread(ttfts_s(readings, speed)),
        itl_s=spread(itls_s(readings, speed)),
        late_s=spread([speed * (reading.sent_s - reading.due_s) for reading in readings]),
        hit_rate=_ratio(
            sum(reading.num_cached for reading in answered), sum(reading.num_prompt for reading in answered)
        ),
        remote_share=_ratio(sum(reading.prefill == "remote" for reading in answered), len(answered)),
        good_share=_ratio(num_good, len(readings)),
        goodput_per_s=_ratio(num_good, duration_s),
        shares=_shares(answered),
    )


def ttfts_s(readings: Sequence[Reading], speed: float) -> list[float]:
    """Of every answered request, in the trace's seconds."""
    return [speed * reading.ttft_s for reading in readings if not reading.error]


def itls_s(readings: Sequence[Reading], speed: float) -> list[float]:
    """Every gap between two events of an answered request, in the trace's seconds."""
    return [speed * gap_s for reading in readings if not reading.error for gap_s in reading.gaps_s]


def spread(values: Sequence[float]) -> Spread | None:
    """Percentiles by nearest rank: each is one of the values."""
    if not values:
        return None
    ordered = sorted(values)

    def percentile(percent: int) -> float:
        return ordered[-(-percent * len(ordered) // 100) - 1]

    return Spread(sum(ordered) / len(ordered), percentile(50), percentile(90), percentile(99))


def is_good(reading: Reading, limits: Limits, speed: float) -> bool:
    """Of an answered request: it kept both limits."""
    return speed * reading.ttft_s <= limits.ttft_s and speed * reading.mean_itl_s <= limits.itl_s


def _span_s(readings: Sequence[Reading]) -> float:
    if not readings:
        return 0.0
    return max(reading.ended_s for reading in readings) - min(reading.due_s for reading in readings)


def _shares(answered: Sequence[Reading]) -> dict[str, float]:
    counts = Counter(reading.worker for reading in answered if reading.worker)
    return {worker: counts[worker] / counts.total() for worker in sorted(counts)}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
