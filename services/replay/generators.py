"""Traces that are made: loads whose sharing is known, so that a router can be judged by them.

All are pure functions of their arguments: the same seed gives the same trace. Every shared part is whole
blocks, since a trace cannot say that two prompts share part of one.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, islice

import msgspec

from services.replay.arrivals import Bursts, bursty, steady
from services.replay.trace import BLOCK_TOKENS, TraceRequest, num_blocks


class Shape(msgspec.Struct, frozen=True):
    """What the requests of every load have.

    Units: `rate_per_s` requests a second; `input_tokens` of a prompt that nobody shares, and `output_tokens`,
    both on average: lengths lie evenly between half and one and a half of that.
    """

    num_requests: int = 1000
    rate_per_s: float = 4.0
    input_tokens: int = 256
    output_tokens: int = 128
    seed: int = 0


def shared_prefix(shape: Shape, num_prefixes: int, prefix_blocks: int) -> list[TraceRequest]:
    """Each request begins with one of a few prefixes, all alike in weight: system prompts."""
    weights = [1.0] * num_prefixes
    return _with_prefixes(shape, weights, prefix_blocks, _steady(shape))


def zipf(shape: Shape, num_prefixes: int, prefix_blocks: int, exponent: float) -> list[TraceRequest]:
    """As `shared_prefix`, but the prefix of rank r is asked for in proportion to 1/r^exponent: documents."""
    weights = [rank**-exponent for rank in range(1, num_prefixes + 1)]
    return _with_prefixes(shape, weights, prefix_blocks, _steady(shape))


def burst(shape: Shape, num_prefixes: int, prefix_blocks: int, bursts: Bursts) -> list[TraceRequest]:
    """As `shared_prefix`, but requests come in bursts; the rate is that of the whole."""
    weights = [1.0] * num_prefixes
    times_s = bursty(shape.rate_per_s, bursts, random.Random(f"arrivals {shape.seed}"))
    return _with_prefixes(shape, weights, prefix_blocks, times_s)


def multi_turn(shape: Shape, num_turns: int, system_blocks: int, pause_s: float) -> list[TraceRequest]:
    """Sessions of `num_turns`: each prompt is all that was said before, answers too, and something new.

    `system_blocks` begin every session. Turns of a session follow one another after `pause_s` on average,
    which the answer is part of: a trace does not wait for answers.
    """
    draw = random.Random(f"content {shape.seed}")
    starts_s = steady(shape.rate_per_s / num_turns, random.Random(f"arrivals {shape.seed}"))
    ids = count()
    system = list(islice(ids, system_blocks))
    num_sessions = -(-shape.num_requests // num_turns)
    turns = [
        turn
        for start_s in islice(starts_s, num_sessions)
        for turn in _session(shape, start_s, num_turns, system, pause_s, ids, draw)
    ]
    return sorted(turns, key=lambda turn: turn.timestamp)[: shape.num_requests]


def _session(
    shape: Shape,
    start_s: float,
    num_turns: int,
    system: Sequence[int],
    pause_s: float,
    ids: Iterator[int],
    draw: random.Random,
) -> Iterator[TraceRequest]:
    full = list(system)
    num_tokens = len(full) * BLOCK_TOKENS
    at_s = start_s
    for _ in range(num_turns):
        num_tokens += _length(shape.input_tokens, draw)
        full += islice(ids, num_tokens // BLOCK_TOKENS - len(full))
        cut = list(islice(ids, num_blocks(num_tokens) - len(full)))  # another block once it is full
        output = _length(shape.output_tokens, draw)
        yield TraceRequest(round(at_s * 1e3), num_tokens, output, (*full, *cut))
        num_tokens += output
        at_s += draw.expovariate(1 / pause_s)


def _with_prefixes(
    shape: Shape, weights: Sequence[float], prefix_blocks: int, times_s: Iterator[float]
) -> list[TraceRequest]:
    draw = random.Random(f"content {shape.seed}")
    ids = count()
    prefixes = [tuple(islice(ids, prefix_blocks)) for _ in weights]
    bounds = list(accumulate(weights))
    requests = []
    for at_s in islice(times_s, shape.num_requests):
        prefix = draw.choices(prefixes, cum_weights=bounds)[0]
        own_tokens = _length(shape.input_tokens, draw)
        own = tuple(islice(ids, num_blocks(own_tokens)))
        num_tokens = prefix_blocks * BLOCK_TOKENS + own_tokens
        output = _length(shape.output_tokens, draw)
        requests.append(TraceRequest(round(at_s * 1e3), num_tokens, output, prefix + own))
    return requests


def _steady(shape: Shape) -> Iterator[float]:
    return steady(shape.rate_per_s, random.Random(f"arrivals {shape.seed}"))


def _length(mean: int, draw: random.Random) -> int:
    spread = mean // 2
    return draw.randint(mean - spread, mean + spread)
