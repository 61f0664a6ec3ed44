"""What clients ask of one model and what they feel: from the counts of all frontends to rates and quantiles.

Fed with beats; measured at each look, for the time since the look before. A frontend's first beat only says
where its counts stand, so neither its coming, nor its end, nor that of this process is taken for traffic.
"""

from collections import deque
from collections.abc import Collection, Sequence
from math import sqrt

import msgspec

from proto.traffic import ModelTraffic
from services.planner.flow import Flow
from services.planner.histogram import add_counts, quantile_s, subtract_counts

LEAST_COUNT = 10
"""Fewer latencies than this say nothing."""
FLOW_SAMPLES = 0.55
"""A forecast rests on what comes in this share of the memory: 1 over the integral of its squared kernel."""
NUM_DEVIATIONS = 2.0
MOST_LONGER = 2.0
"""So many times longer than those that have ended the others are taken to be at most."""
SIZE_SPREAD = 2.0
"""1 + the squared variation of the sizes of requests, were they exponential."""


class MeterRules(msgspec.Struct, frozen=True):
    """Units: seconds that rates remember, that latencies are looked back on, and that are looked ahead."""

    memory_s: float
    window_s: float
    ahead_s: float
    quantile: float


class Traffic(msgspec.Struct, frozen=True):
    """Rates as they are expected to be.

    Units: tokens a second, `prompt_rate` without what is cached; `prompt_tokens` a prompt, likewise;
    latencies in seconds, 0 while unknown; `noise` is the share by which rates may be off by mere chance.
    `num_waiting` requests have no token yet, with prompts of `waiting_tokens`, without what is cached.
    """

    request_rate: float = 0.0
    prompt_rate: float = 0.0
    output_rate: float = 0.0
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0
    ttft_s: float = 0.0
    itl_s: float = 0.0
    noise: float = 0.0
    num_waiting: int = 0
    waiting_tokens: float = 0.0


class _Numbers(msgspec.Struct, frozen=True):
    """What came between two looks, or in many of them."""

    num_begun: int = 0
    num_ended: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    answer_tokens: int = 0
    ttft_counts: Sequence[int] = ()
    itl_counts: Sequence[int] = ()


def _since(now: ModelTraffic, before: ModelTraffic) -> _Numbers:
    return _Numbers(
        num_begun=now.num_begun - before.num_begun,
        num_ended=now.num_ended - before.num_ended,
        prompt_tokens=now.prompt_tokens - before.prompt_tokens,
        cached_tokens=now.cached_tokens - before.cached_tokens,
        output_tokens=now.output_tokens - before.output_tokens,
        answer_tokens=now.answer_tokens - before.answer_tokens,
        ttft_counts=subtract_counts(now.ttft_counts, before.ttft_counts),
        itl_counts=subtract_counts(now.itl_counts, before.itl_counts),
    )


def _sum(all_numbers: Collection[_Numbers]) -> _Numbers:
    return _Numbers(
        num_begun=sum(each.num_begun for each in all_numbers),
        num_ended=sum(each.num_ended for each in all_numbers),
        prompt_tokens=sum(each.prompt_tokens for each in all_numbers),
        cached_tokens=sum(each.cached_tokens for each in all_numbers),
        output_tokens=sum(each.output_tokens for each in all_numbers),
        answer_tokens=sum(each.answer_tokens for each in all_numbers),
        ttft_counts=add_counts(each.ttft_counts for each in all_numbers),
        itl_counts=add_counts(each.itl_counts for each in all_numbers),
    )


def _answer_tokens(window: _Numbers) -> float:
    """How long an answer is. Where answers become longer, those that have ended are the short ones yet: then
    what came in all over the number of ends says more, unless the difference is chance.

    Source: the mean of a lifetime when some still live, as total time over deaths (Epstein and Sobel 1953).
    """
    of_ended = window.answer_tokens / window.num_ended
    of_all = window.output_tokens / window.num_ended
    chance = 1.0 + NUM_DEVIATIONS / sqrt(window.num_ended)
    return min(of_all, MOST_LONGER * of_ended) if of_all > chance * of_ended else of_ended


class TrafficMeter:
    """One model's. Knows no clock."""

    def __init__(self, rules: MeterRules) -> None:
        self._rules = rules
        self._last: dict[str, ModelTraffic] = {}
        self._fresh: list[_Numbers] = []
        self._looks: deque[tuple[float, _Numbers]] = deque()
        self._requests = Flow(rules.memory_s)
        self._prompts = Flow(rules.memory_s)
        self._outputs = Flow(rules.memory_s)
        self._measured_s: float | None = None
        self._cached_share = 0.0
        self._prompt_tokens = 0.0
        self._answer_tokens = 0.0

    def hear(self, frontend: str, traffic: ModelTraffic) -> None:
        before = self._last.get(frontend)
        self._last[frontend] = traffic
        if before is not None:
            self._fresh.append(_since(traffic, before))

    def forget(self, frontend: str) -> None:
        """It is gone, and so is what waited there."""
        self._last.pop(frontend, None)

    def measure(self, now_s: float) -> None:
        """Takes in what was heard since the last time. Whoever heard too little calls it later."""
        passed_s = now_s - (self._measured_s if self._measured_s is not None else now_s)
        came, self._fresh = _sum(self._fresh), []
        self._measured_s = now_s
        if passed_s <= 0.0:
            return
        self._looks.append((now_s, came))
        while self._looks[0][0] <= now_s - self._rules.window_s:
            self._looks.popleft()
        window = _sum([counts for _, counts in self._looks])
        self._learn_sizes(window)
        uncached = came.prompt_tokens * (1.0 - self._cached_share)
        self._requests.note(came.num_begun, passed_s)
        self._prompts.note(uncached, passed_s)
        self._outputs.note(max(came.output_tokens, came.num_begun * self._answer_tokens), passed_s)

    def _learn_sizes(self, window: _Numbers) -> None:
        """What a request is like, by the last ones; as known before while there are none."""
        if window.prompt_tokens:
            self._cached_share = min(1.0, window.cached_tokens / window.prompt_tokens)
        if window.num_begun:
            self._prompt_tokens = window.prompt_tokens / window.num_begun
        if window.num_ended:
            self._answer_tokens = _answer_tokens(window)

    def forget_latencies(self) -> None:
        """What was felt until now says nothing of how it is with another split."""
        for index, (at_s, came) in enumerate(self._looks):
            bare = msgspec.structs.replace(came, ttft_counts=(), itl_counts=())
            self._looks[index] = (at_s, bare)

    def traffic(self) -> Traffic:
        """As of the last measure, looking ahead."""
        rules, uncached = self._rules, 1.0 - self._cached_share
        window = _sum([counts for _, counts in self._looks])
        return Traffic(
            request_rate=self._requests.forecast(rules.ahead_s),
            prompt_rate=self._prompts.forecast(rules.ahead_s),
            output_rate=self._outputs.forecast(rules.ahead_s),
            prompt_tokens=self._prompt_tokens * uncached,
            answer_tokens=self._answer_tokens,
            ttft_s=self._quantile_s(window.ttft_counts),
            itl_s=self._quantile_s(window.itl_counts),
            noise=self._noise(),
            num_waiting=sum(last.num_waiting for last in self._last.values()),
            waiting_tokens=uncached * sum(last.waiting_tokens for last in self._last.values()),
        )

    def _quantile_s(self, counts: Sequence[int]) -> float:
        return quantile_s(counts, self._rules.quantile) if sum(counts) >= LEAST_COUNT else 0.0

    def _noise(self) -> float:
        num_requests = FLOW_SAMPLES * self._rules.memory_s * self._requests.mean
        return sqrt(SIZE_SPREAD / num_requests) if num_requests > 0.0 else 0.0
