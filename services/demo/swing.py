"""A load that swings between prompt-heavy and answer-heavy, and the simulated workers that it is made for.

A worker stands for a model of some thirty billion parameters on one GPU: 5,000 tokens of a prompt a second,
and steps of 40 ms and 6 ms more for each sequence, so that seven at once keep the ITL limit. Of eight
workers each load wants its own split; under any other, tokens wait for chunks of prompts, or for too many
beside them:

```
 prompts   6.0 requests/s of 4,000 tokens in and  12 out   24,000 tokens/s of prompts,  72 of answers   6 : 2
 answers   5.3 requests/s of   400 tokens in and 100 out    2,120 tokens/s of prompts, 530 of answers   1 : 7
 even      4.4 requests/s of 3,000 tokens in and  56 out   13,200 tokens/s of prompts, 246 of answers   4 : 4
```
"""

import random
from collections.abc import Sequence
from itertools import count, islice, takewhile

import msgspec

from services.replay.arrivals import steady
from services.replay.report import Limits
from services.replay.trace import TraceRequest, num_blocks

NUM_WORKERS = 8
LIMITS = Limits(ttft_s=6.0, itl_s=0.085)
SIMULATED = {
    "first_token": 34,  # letters and digits, so that every token shows at once
    "num_tokens": 60,
    "step_s": 0.04,
    "sequence_s": 0.006,
    "context_token_s": 0.0,
    "prefill_token_s": 0.0002,
    "prefill_doubling_tokens": 0,
    "jitter": 0.05,
}
"""Settings of the table `[simulated]`."""
CROWD = {"num_blocks": 4096, "block_size": 64, "context_tokens": 16384, "max_sequences": 32}
"""Settings of the table `[simulate]`."""


class Mix(msgspec.Struct, frozen=True):
    """What clients ask for. Units: requests a second; tokens of a prompt and of an answer, on average."""

    name: str
    rate_per_s: float
    prompt_tokens: int
    answer_tokens: int


PROMPTS = Mix("prompts", 6.0, 4000, 12)
ANSWERS = Mix("answers", 5.3, 400, 100)
EVEN = Mix("even", 4.4, 3000, 56)


def swing(mixes: Sequence[Mix], phase_s: float, seed: int) -> list[TraceRequest]:
    """`mixes` by turns, each for `phase_s` seconds; nobody shares a prompt."""
    ids = count()
    draw = random.Random(f"swing {seed}")
    return [
        _request(mix, number * phase_s + at_s, ids, draw)
        for number, mix in enumerate(mixes)
        for at_s in takewhile(lambda at_s: at_s < phase_s, steady(mix.rate_per_s, draw))
    ]


def _request(mix: Mix, at_s: float, ids: "count[int]", draw: random.Random) -> TraceRequest:
    """Lengths lie evenly between half and one and a half of the mean."""
    prompt, answer = (round(mean * draw.uniform(0.5, 1.5)) for mean in (mix.prompt_tokens, mix.answer_tokens))
    return TraceRequest(round(at_s * 1e3), prompt, answer, tuple(islice(ids, num_blocks(prompt))))
