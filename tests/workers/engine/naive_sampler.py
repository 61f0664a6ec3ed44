"""One row, one token, in plain Python: what the sampler does for many rows at once, said a second time."""

import math
from dataclasses import dataclass, field

from workers.engine.draw import Draw
from workers.engine.runner import SampleParams
from workers.engine.sampler import uniform
from workers.engine.token_counts import TokenCounts


@dataclass(frozen=True)
class Asked:
    """A row: its logits, the tokens before it, and all that the request says. `allowed` None: all tokens."""

    logits: list[float]
    params: SampleParams
    prompt: list[int]
    generated: list[int]
    banned: frozenset[int] = frozenset()
    allowed: frozenset[int] | None = field(default=None)

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.generated)

    def draw(self, key: int) -> Draw:
        """As the engine asks for it."""
        counts = None
        if self.params.penalises:
            seen = self.prompt if self.params.repetition != 1.0 else []
            counts = TokenCounts(seen, len(self.prompt))
            counts.catch_up([*self.prompt, *self.generated])
        counted = None if counts is None else counts.after([])
        return Draw(key, self.params, self.position, counted, self.banned, self._mask())

    def _mask(self) -> bytes | None:
        if self.allowed is None:
            return None
        bits = sum(1 << token for token in self.allowed)
        return bits.to_bytes(4 * -(-len(self.logits) // 32), "little")


def naive_scores(asked: Asked) -> list[float]:
    """The logits that a token is drawn from."""
    params = asked.params
    scores = list(asked.logits)
    if asked.allowed is not None:
        scores = [score if token in asked.allowed else -math.inf for token, score in enumerate(scores)]
    free = [score for token, score in enumerate(scores) if token not in asked.banned]
    if any(score > -math.inf for score in free):
        scores = [-math.inf if token in asked.banned else score for token, score in enumerate(scores)]
    for token, bias in params.bias.items():
        scores[token] += bias
    for token in {*asked.prompt, *asked.generated}:
        factor = params.repetition if scores[token] < 0 else 1 / params.repetition
        scores[token] *= factor
    for token in set(asked.generated):
        scores[token] -= params.presence + params.frequency * asked.generated.count(token)
    return scores


def naive_tokens(asked: Asked) -> list[int]:
    """The token; of a greedy draw all that are as likely as any."""
    params, scores = asked.params, naive_scores(asked)
    best = max(scores)
    if not params.temperature:
        return [token for token, score in enumerate(scores) if score == best]
    weights = [math.exp((score - best) / params.temperature) for score in scores]
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    if 0 < params.top_k < len(weights):
        weights = _from(weights, sorted(weights, reverse=True)[params.top_k - 1])
    if params.top_p < 1:
        weights = _from(weights, _lightest_of_share(weights, params.top_p))
    target = uniform(params.seed, asked.position) * sum(weights)
    for token, weight in enumerate(weights):
        target -= weight
        if target < 0:
            return [token]
    raise AssertionError("the target lies beyond all weights")


def naive_logprobs(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(logit - max(logits)) for logit in logits)) + max(logits)
    return [logit - total for logit in logits]


def _lightest_of_share(weights: list[float], share: float) -> float:
    held, wanted = 0.0, share * sum(weights)
    for weight in sorted(weights, reverse=True):
        held += weight
        if held >= wanted:
            return weight
    return 0.0


def _from(weights: list[float], least: float) -> list[float]:
    return [weight if weight >= least else 0.0 for weight in weights]
