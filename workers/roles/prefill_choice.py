"""Where a prompt is prefilled: here, or by which prefill worker; by predicted time, or by a plain threshold.

```
 here  = queue_here_s     prompts that wait here already, over the rate here
       + compute_here_s   its uncached tokens, over the rate here
       + harm_s           weight x what all those that run, or soon will, lose meanwhile, each the whole of it
 there = trip_s           the ask, the grant and the notice
       + queue_there_s    jobs taken, offered and queued, over the rate there
       + compute_there_s  what neither of the two has, over the rate there
       + transfer_s       what is pulled before, and of the push what is not done when the compute is
```
Tokens, rates, bytes a second and trips are measured. Until they are, a worker computes as fast as the fastest
that has measured, else at `ASSUMED_RATE`, writes at `ASSUMED_BYTES_PER_S`, and is `ASSUMED_TRIP_S` away.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workers.engine.engine_load import EngineLoad
from workers.roles.trips import ASSUMED_TRIP_S

PrefillMode = Literal["predicted", "threshold"]
"""By predicted time, or elsewhere whenever it is long enough and can go there."""
Reason = Literal["short", "warm", "no_prefill_worker", "no_room", "slower_there", "chosen"]
"""Why here: too short, or only what is uncached of it; nobody to do it; too much lent; it would take longer.
`chosen`: there."""

ASSUMED_RATE = 1000.0
ASSUMED_BYTES_PER_S = 1e9
ACROSS_ZONES = 0.1
"""Between zones KV is taken to move at this share of the speed."""


@dataclass(frozen=True, slots=True)
class PrefillRules:
    """Units: `min_tokens` uncached tokens from which a prompt may go elsewhere; `slowdown` a second that one
    of those that run loses, against a second of waiting. `zone` is the worker's own."""

    mode: PrefillMode
    min_tokens: int
    slowdown: float
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Units: `num_tokens` whose KV is wanted, `cached_tokens` of them here; `token_bytes` of KV a token."""

    num_tokens: int
    cached_tokens: int
    token_bytes: float

    @property
    def uncached_tokens(self) -> int:
        return self.num_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Here:
    """Units: `waiting_tokens` to be prefilled before it; `prefill_rate` tokens a second, 0 until measured.

    `num_running` counts those that would feel a prefill: also those whose own is being done elsewhere, since
    they run before a long one has ended.
    """

    waiting_tokens: int
    num_running: int
    prefill_rate: float


def here_now(load: EngineLoad, num_own: int = 0) -> Here:
    """Args: `num_own`: 1 when the prompt's own sequence awaits its KV here already."""
    return Here(load.waiting_tokens, load.num_running + load.num_awaiting - num_own, load.prefill_rate)


@dataclass(frozen=True, slots=True)
class There:
    """A prefill worker.

    Units: `waiting_tokens` to be prefilled before it; `prefill_rate` tokens and `bytes_per_s` bytes of KV a
    second, 0 until measured; `prefix_tokens` of the prompt that it holds; `trip_s` seconds.
    """

    worker: str
    waiting_tokens: float
    prefill_rate: float
    bytes_per_s: float = 0.0
    prefix_tokens: int = 0
    zone: str = ""
    trip_s: float = ASSUMED_TRIP_S


@dataclass(frozen=True, slots=True)
class Terms:
    """Units: seconds."""

    queue_here_s: float
    compute_here_s: float
    harm_s: float
    trip_s: float
    queue_there_s: float
    compute_there_s: float
    transfer_s: float

    @property
    def here_s(self) -> float:
        return self.queue_here_s + self.compute_here_s + self.harm_s

    @property
    def there_s(self) -> float:
        return self.trip_s + self.queue_there_s + self.compute_there_s + self.transfer_s


@dataclass(frozen=True, slots=True)
class Choice:
    """`worker` is the prefill worker to be asked first, empty for here; `terms` are those of the best one,
    where any came into question."""

    reason: Reason
    worker: str = ""
    terms: Terms | None = None

    @property
    def is_remote(self) -> bool:
        return bool(self.worker)


def choose_place(
    prompt: Prompt, here: Here, others: Sequence[There], has_room: bool, rules: PrefillRules
) -> Choice:
    """Args: `has_room`: whether blocks for its KV may be lent."""
    if prompt.uncached_tokens < rules.min_tokens:
        return Choice("short" if prompt.num_tokens < rules.min_tokens else "warm")
    if not others:
        return Choice("no_prefill_worker")
    if not has_room:
        return Choice("no_room")
    best, terms = _best(prompt, here, others, rules)
    if rules.mode == "predicted" and terms.there_s >= terms.here_s:
        return Choice("slower_there", terms=terms)
    return Choice("chosen", best.worker, terms)


def _best(prompt: Prompt, here: Here, others: Sequence[There], rules: PrefillRules) -> tuple[There, Terms]:
    """Who would be done first; of those alike one of this zone, else any."""
    measured = max((here.prefill_rate, *(other.prefill_rate for other in others)))
    predicted = [(other, predict(prompt, here, other, measured or ASSUMED_RATE, rules)) for other in others]

    def rank(one: tuple[There, Terms]) -> tuple[float, bool, float]:
        return (one[1].there_s, one[0].zone != rules.zone, random.random())

    return min(predicted, key=rank)


def predict(prompt: Prompt, here: Here, there: There, assumed_rate: float, rules: PrefillRules) -> Terms:
    """The terms for one prefill worker. Units: `assumed_rate` tokens a second, where none is measured."""
    rate_here, rate_there = here.prefill_rate or assumed_rate, there.prefill_rate or assumed_rate
    compute_here_s = prompt.uncached_tokens / rate_here
    found = max(prompt.cached_tokens, min(there.prefix_tokens, prompt.num_tokens))
    compute_there_s = (prompt.num_tokens - found) / rate_there
    return Terms(
        queue_here_s=here.waiting_tokens / rate_here,
        compute_here_s=compute_here_s,
        harm_s=rules.slowdown * here.num_running * compute_here_s,
        trip_s=there.trip_s,
        queue_there_s=there.waiting_tokens / rate_there,
        compute_there_s=compute_there_s,
        transfer_s=_transfer_s(prompt, there, compute_there_s, rules.zone),
    )


def _transfer_s(prompt: Prompt, there: There, compute_s: float, zone: str) -> float:
    """A pull comes before the compute; a push goes on beside it."""
    bytes_per_s = there.bytes_per_s or ASSUMED_BYTES_PER_S
    token_s = prompt.token_bytes / bytes_per_s / (1.0 if there.zone == zone else ACROSS_ZONES)
    pull_s = max(0, prompt.cached_tokens - there.prefix_tokens) * token_s
    return pull_s + max(0.0, prompt.uncached_tokens * token_s - compute_s)
