"""What it would cost to send a request to a worker, in seconds, term by term.

```
 total = wait_s       before its first token: tokens promised there and its own uncached ones, over the rate
       + seat_s       until one of those running ends, when every seat is taken
       + slowdown_s   weight x what those running feel of its prefill and of its decode steps
       + work_s       weight x the prefill that it makes the mesh do: time taken from whoever comes next
       + shortage_s   a large term when the pool has not the blocks for it
```
Rates are the workers' own, so one that is slow loses traffic by itself. Without `work_s` a
sibling would leave the worker that computes their common prefix for an idle one, to wait as long there.
"""

import math

import msgspec

from router.predictions import PromisedLoad


class Weights(msgspec.Struct, frozen=True):
    """What the terms are weighed with.

    Units: `slowdown` counts a second felt by those running against one of waiting, `work` a second of
    prefill; `answer_tokens` the most tokens of an answer that are foreseen; `remote_min_tokens` uncached
    tokens from which prefill goes elsewhere; `shortage_s` seconds added where blocks are short.
    """

    slowdown: float
    work: float
    answer_tokens: int
    remote_min_tokens: int
    shortage_s: float


class Demand(msgspec.Struct, frozen=True):
    """What the request asks for. Units: tokens; `answer_tokens` are still to be generated."""

    num_tokens: int
    answer_tokens: int
    block_size: int


class Candidate(msgspec.Struct, frozen=True):
    """A worker as the cost sees it: what it reported, was promised since, and holds of the prompt.

    Units: `prefill_rate` tokens a second and `decode_step_s` seconds, measured there or assumed.
    """

    worker: str
    epoch: int
    num_sequences: int
    max_sequences: int
    waiting_tokens: int
    free_blocks: int
    prefill_rate: float
    decode_step_s: float
    hit_tokens: int
    promised: PromisedLoad = PromisedLoad()

    @property
    def load(self) -> float:
        """Sequences there, reported and promised, over seats."""
        return (self.num_sequences + self.promised.num_sequences) / max(1, self.max_sequences)


class PrefillWorker(msgspec.Struct, frozen=True):
    """Units: `job_tokens` tokens of jobs that it has taken; `prefill_rate` tokens a second."""

    job_tokens: int
    prefill_rate: float


class Terms(msgspec.Struct, frozen=True):
    """Units: seconds, but for `hit_tokens`."""

    wait_s: float
    seat_s: float
    slowdown_s: float
    work_s: float
    shortage_s: float
    hit_tokens: int
    is_remote: bool

    @property
    def total_s(self) -> float:
        return self.wait_s + self.seat_s + self.slowdown_s + self.work_s + self.shortage_s


def score(candidate: Candidate, demand: Demand, prefill_pool: list[PrefillWorker], weights: Weights) -> Terms:
    """The terms for sending `demand` to `candidate`."""
    new_tokens = demand.num_tokens - candidate.hit_tokens
    prefill_s = new_tokens / candidate.prefill_rate
    here_s = (candidate.waiting_tokens + candidate.promised.new_tokens) / candidate.prefill_rate + prefill_s
    away_s = _remote_wait_s(new_tokens, prefill_pool, weights)
    is_remote = away_s < here_s
    decode_s = min(demand.answer_tokens, weights.answer_tokens) * candidate.decode_step_s
    felt_s = decode_s + (0.0 if is_remote else prefill_s)
    return Terms(
        wait_s=min(here_s, away_s),
        seat_s=_seat_s(candidate, weights),
        slowdown_s=weights.slowdown * candidate.load * felt_s,
        work_s=weights.work * prefill_s,
        shortage_s=weights.shortage_s if _is_short(candidate, demand) else 0.0,
        hit_tokens=candidate.hit_tokens,
        is_remote=is_remote,
    )


def _remote_wait_s(new_tokens: int, pool: list[PrefillWorker], weights: Weights) -> float:
    """With the prefill worker that would be done first; for ever when the prompt would not go there."""
    if new_tokens < weights.remote_min_tokens:
        return math.inf
    return min(((one.job_tokens + new_tokens) / one.prefill_rate for one in pool), default=math.inf)


def _seat_s(candidate: Candidate, weights: Weights) -> float:
    """An answer takes `answer_tokens` steps, and as many answers end meanwhile as there are seats."""
    seats = max(1, candidate.max_sequences)
    sequences = candidate.num_sequences + candidate.promised.num_sequences
    return max(0, sequences - seats + 1) / seats * weights.answer_tokens * candidate.decode_step_s


def _is_short(candidate: Candidate, demand: Demand) -> bool:
    """Whether prompt and first token need more new blocks than are neither held nor promised."""
    new_tokens = demand.num_tokens + 1 - candidate.hit_tokens
    wanted = -(-new_tokens // demand.block_size) + candidate.promised.new_tokens // demand.block_size
    return wanted > candidate.free_blocks
