"""What it would cost to send a request to each worker, in seconds, term by term, for all workers at once.

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

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.columns import Column

REMOTE_TRIP_S: Final = 0.003
"""The ask, the grant and the notice of a prefill elsewhere, as decode workers take them to be until they have
measured. Of the push hardly anything is left when the compute ends."""


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


class Candidates(msgspec.Struct, frozen=True, eq=False):
    """Workers as the cost sees them: what each reported, was promised since, and holds of the prompt.

    Units: `num_sequences` and `promised_sequences` over `seats`, which are at least 1; `prefill_rate` tokens
    a second and `decode_step_s` seconds, measured there or assumed; tokens and blocks else.
    """

    num_sequences: Column
    seats: Column
    waiting_tokens: Column
    free_blocks: Column
    prefill_rate: Column
    decode_step_s: Column
    hit_tokens: Column
    promised_sequences: Column
    promised_tokens: Column

    @property
    def load(self) -> Column:
        """Sequences there, reported and promised, over seats."""
        return (self.num_sequences + self.promised_sequences) / self.seats


class PrefillPool(msgspec.Struct, frozen=True, eq=False):
    """The prefill workers. Units: `job_tokens` of jobs that each has taken; `prefill_rate` tokens/s;
    `hit_tokens` of the prompt that each holds."""

    job_tokens: Column
    prefill_rate: Column
    hit_tokens: Column


class Terms(msgspec.Struct, frozen=True, eq=False):
    """What each candidate costs. Units: seconds."""

    wait_s: Column
    seat_s: Column
    slowdown_s: Column
    work_s: Column
    shortage_s: Column
    is_remote: NDArray[np.bool_]

    @property
    def total_s(self) -> Column:
        return self.wait_s + self.seat_s + self.slowdown_s + self.work_s + self.shortage_s


def score(candidates: Candidates, demand: Demand, pool: PrefillPool, weights: Weights) -> Terms:
    """The terms for sending `demand` to each of `candidates`."""
    new_tokens = demand.num_tokens - candidates.hit_tokens
    prefill_s = new_tokens / candidates.prefill_rate
    before_s = (candidates.waiting_tokens + candidates.promised_tokens) / candidates.prefill_rate
    here_s, away_s = before_s + prefill_s, _remote_wait_s(demand, new_tokens, pool, weights)
    harm_s = weights.slowdown * candidates.num_sequences * prefill_s
    is_remote = away_s < here_s + harm_s  # as `workers/roles/prefill_choice.py` will find
    decode_s = min(demand.answer_tokens, weights.answer_tokens) * candidates.decode_step_s
    felt_s = decode_s + np.where(is_remote, 0.0, prefill_s)
    return Terms(
        wait_s=np.where(is_remote, away_s, here_s),
        seat_s=_seat_s(candidates, weights),
        slowdown_s=weights.slowdown * candidates.load * felt_s,
        work_s=weights.work * prefill_s,
        shortage_s=np.where(_is_short(candidates, demand), weights.shortage_s, 0.0),
        is_remote=is_remote,
    )


def _remote_wait_s(demand: Demand, new_tokens: Column, pool: PrefillPool, weights: Weights) -> Column:
    """With the prefill worker that would be done first; for ever when the prompt would not go there.

    It computes what neither it nor the candidate holds; the trip comes on top. Few lengths differ, so that
    each is asked about once.
    """
    if not len(pool.job_tokens):
        return np.full(len(new_tokens), np.inf)
    lengths, which = np.unique(new_tokens, return_inverse=True)
    missing = np.minimum(lengths[:, None], demand.num_tokens - pool.hit_tokens)
    waits_s = REMOTE_TRIP_S + ((pool.job_tokens + missing) / pool.prefill_rate).min(axis=1)
    waits_s[lengths < weights.remote_min_tokens] = np.inf
    remote_s: Column = waits_s[which]
    return remote_s


def _seat_s(candidates: Candidates, weights: Weights) -> Column:
    """An answer takes `answer_tokens` steps, and as many answers end meanwhile as there are seats."""
    sequences = candidates.num_sequences + candidates.promised_sequences
    too_many = np.maximum(0.0, sequences - candidates.seats + 1)
    return too_many / candidates.seats * weights.answer_tokens * candidates.decode_step_s


def _is_short(candidates: Candidates, demand: Demand) -> NDArray[np.bool_]:
    """Whether prompt and first token need more new blocks than are neither held nor promised."""
    own_blocks = np.ceil((demand.num_tokens + 1 - candidates.hit_tokens) / demand.block_size)
    return own_blocks + candidates.promised_tokens // demand.block_size > candidates.free_blocks
