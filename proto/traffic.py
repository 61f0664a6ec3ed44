"""What clients ask of a model and what they feel, as a frontend counts it."""

from proto.struct import WireStruct

LATENCY_BOUNDS_S = tuple(round(0.0001 * 2 ** (step / 3), 7) for step in range(64))
"""Upper bounds of the buckets in which latencies are counted: a tenth of a millisecond to some minutes, each
a quarter longer than the one before. What is longer still counts in one bucket more."""


class ModelTraffic(WireStruct, frozen=True):
    """The requests of one model at one frontend, each choice of an answer as one.

    All but the last two count since the frontend's start, so that a lost beat costs nothing: `prompt_tokens`
    of what has begun, `cached_tokens` of its prompts whose KV was found, `answer_tokens` of what has ended.
    `ttft_counts[i]` first tokens and `itl_counts[i]` later ones took a time of bucket i; zeros at the end are
    left out. `num_waiting` have no token yet, with prompts of `waiting_tokens`.
    """

    model: str
    num_begun: int = 0
    num_ended: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    answer_tokens: int = 0
    ttft_counts: list[int] = []
    itl_counts: list[int] = []
    num_waiting: int = 0
    waiting_tokens: int = 0
