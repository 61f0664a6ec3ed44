"""What a model's weights cost and lose in fewer bits: the default model in each kind, on one thread.

Run: `python -m tests.perf.weights`, a minute and a half.

`perplexity` is that of a text of some 3,700 tokens, `greedy_agreement` the share of them at which the
likeliest token is that of float32. `decode_step_ratio` is how many times as fast as in float32 a step is that
decodes so many sequences with 128 tokens of context each; the kinds take turns, and the median of the rounds
counts. `prefill_ratio` is the same for a prompt of 512 tokens.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch

from services.models.catalog import DEFAULT_MODEL
from services.models.folder import resolve_model
from tests.workers.model.text_quality import BLOCK_SIZE, CPU, load_decoder, read_text, text_tokens
from workers.engine.pool_tensor import allocate_pool
from workers.model.batch import build_batch
from workers.model.chunk import Chunk
from workers.model.decoder import Decoder

KINDS = ("float32", "bfloat16", "float16", "int8")
BATCHES = (1, 8, 32)
CONTEXT = 128
PROMPT = 512
ROUNDS = 7

Step = Callable[[], torch.Tensor]


def decode_step(decoder: Decoder, num_sequences: int) -> Step:
    width = CONTEXT // BLOCK_SIZE
    chunks = [
        Chunk([3 + row], CONTEXT - 1, range(row * width, (row + 1) * width), 1)
        for row in range(num_sequences)
    ]
    return forward_of(decoder, chunks, num_sequences * width)


def prefill_step(decoder: Decoder) -> Step:
    num_blocks = PROMPT // BLOCK_SIZE
    return forward_of(decoder, [Chunk(range(3, 3 + PROMPT), 0, range(num_blocks), 1)], num_blocks)


def forward_of(decoder: Decoder, chunks: list[Chunk], num_blocks: int) -> Step:
    pool_NIGLKPD = allocate_pool(decoder.config, num_blocks, BLOCK_SIZE, CPU, decoder.dtype)
    batch = build_batch(chunks, BLOCK_SIZE, CPU)
    return lambda: decoder.forward(batch, pool_NIGLKPD, None)


def speedups(steps: dict[str, Step]) -> dict[str, float]:
    """Of each kind against the first, in rounds in which all take turns."""
    took_s: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(ROUNDS + 1):
        for kind, step in steps.items():
            began_s = time.perf_counter()
            step()
            took_s[kind].append(time.perf_counter() - began_s)
    medians_s = {kind: statistics.median(each[1:]) for kind, each in took_s.items()}  # the first warms up
    first_s = next(iter(medians_s.values()))
    return {kind: round(first_s / median_s, 3) for kind, median_s in medians_s.items()}


def main() -> None:
    torch.set_num_threads(1)
    folder = resolve_model(DEFAULT_MODEL)
    tokens = text_tokens(folder)
    decoders = {kind: load_decoder(folder, kind) for kind in KINDS}
    readings = {kind: read_text(decoder, tokens) for kind, decoder in decoders.items()}
    ratios = {}
    for size in BATCHES:
        ratios[str(size)] = speedups({kind: decode_step(each, size) for kind, each in decoders.items()})
        print(f"decode, {size} sequences: {ratios[str(size)]}")
    found = {
        "num_tokens": len(tokens),
        "perplexity": {kind: round(each.perplexity, 4) for kind, each in readings.items()},
        "greedy_agreement": {
            kind: round(each.agreement(readings["float32"]), 4) for kind, each in readings.items()
        },
        "decode_step_ratio": ratios,
        "prefill_ratio": speedups({kind: prefill_step(each) for kind, each in decoders.items()}),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
