"""What a step of the engine costs beside the bare products in it, and beside `transformers`.

Run: `python -m tests.perf.engine`, some six minutes, two threads, the default model at float32. What is
compared runs by turns, on the same weights, two at a time: each finds in the caches what the other has left
there. Of three, ours would always follow `transformers`, and the floor never. Ratios are medians over turns.

`decode_vs_floor`, `prefill_vs_floor`: a step of the runner, sampling included, over the matrix and attention
products alone (`engine_floor`); decodes by batch at a context of 512 (`decode_vs_floor_128`: of 128), prompts
by length, each in one step. `decode_vs_transformers`, `prefill_vs_transformers`: our tokens a second over
those of `generate` on a static batch, and of its forward. `server_vs_continuous_batching`: eight prompts and
their answers through our engine, over the same through `generate_batch`. `int8_vs_fp32_batch1`: tokens a
second of weights in 8 bits over those in 32. `bookkeeping_share_64`: what a step of 64 decodes takes of the
scheduler, the block pool and the prefix cache, over the step.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from services.models.folder import resolve_model
from tests.perf.engine_floor import Floor
from tests.perf.engine_load import answer_all, bookkeeping_s, decode_rows, prompt_row
from tests.perf.engine_transformers import Reference
from workers.engine.runner import StepBatch
from workers.engine.torch_loading import load_torch_runner
from workers.engine.torch_runner import TorchRunner
from workers.engine.torch_settings import PoolSize, TorchSettings, WeightsName

MODEL = "smollm2-135m"
NUM_THREADS = 2
BLOCK_SIZE = 16
NUM_BLOCKS = 2300
BATCHES = (1, 8, 32)
CONTEXTS = (512, 128)
PROMPTS = (512, 2048)
NUM_TURNS = 7
NUM_PROMPT_TURNS = 3
PARALLEL, PARALLEL_PROMPT, PARALLEL_ANSWER = 8, 128, 32

Timed = Callable[[], object]


def seconds_of(call: Timed) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def by_turns(calls: Sequence[Timed], num_turns: int) -> list[list[float]]:
    """Seconds of each call in each turn, after one that does not count."""
    for call in calls:
        call()
    return [[seconds_of(call) for call in calls] for _ in range(num_turns)]


def ratio(turns: Sequence[Sequence[float]], over: int, under: int) -> float:
    return round(statistics.median(turn[over] / turn[under] for turn in turns), 3)


class Bench:
    """The model thrice: in our runner at 32 and at 8 bits, and in `transformers`."""

    def __init__(self) -> None:
        folder = resolve_model(MODEL).path
        torch.set_num_threads(NUM_THREADS)
        self._runner = load_torch_runner(folder, settings_of("full"))
        self._small = load_torch_runner(folder, settings_of("int8"))
        self._floor = Floor(folder)
        self._reference = Reference(folder)
        fill_pools(self._runner, self._small)

    def run(self) -> dict[str, object]:
        decodes = {context: self._decode_all(context) for context in CONTEXTS}
        prompts = {str(length): self._prefill(length) for length in PROMPTS}
        step_64_s = statistics.median(
            seconds_of(lambda: self._runner.run(StepBatch(decode_rows(64, 512)), None)) for _ in range(3)
        )
        return {
            "decode_vs_transformers": pick(decodes[512], "transformers"),
            "decode_vs_floor": pick(decodes[512], "floor"),
            "decode_vs_floor_128": pick(decodes[128], "floor"),
            "decode_vs_transformers_128": pick(decodes[128], "transformers"),
            "server_vs_continuous_batching": self._serve_parallel(),
            "prefill_vs_floor": pick(prompts, "floor"),
            "prefill_vs_transformers": pick(prompts, "transformers"),
            "int8_vs_fp32_batch1": self._compare_int8(),
            "bookkeeping_share_64": round(bookkeeping_s(64) / (bookkeeping_s(64) + step_64_s), 4),
            "tokens_per_s": pick(decodes[512], "tokens_per_s"),
        }

    def _decode_all(self, context: int) -> dict[str, dict[str, float]]:
        return {str(batch): self._decode(batch, context) for batch in BATCHES}

    def _decode(self, batch: int, context: int) -> dict[str, float]:
        step = StepBatch(decode_rows(batch, context))
        others = self._floor.decode(batch, context), self._reference.decode(batch, context)
        return self._told(f"decode, {batch} of {context}", self._beside(step, others, NUM_TURNS), batch)

    def _prefill(self, length: int) -> dict[str, float]:
        step = StepBatch([prompt_row(length)])
        others = self._floor.prefill(length), self._reference.prefill(length)
        return self._told(f"prefill of {length}", self._beside(step, others, NUM_PROMPT_TURNS), length)

    def _beside(self, step: StepBatch, others: Sequence[Timed], num_turns: int) -> list[list[list[float]]]:
        """Turns of the step and each of the others."""
        return [by_turns([lambda: self._runner.run(step, None), other], num_turns) for other in others]

    def _told(self, what: str, turns: list[list[list[float]]], num_tokens: int) -> dict[str, float]:
        beside_floor, beside_theirs = turns
        found = {
            "floor": ratio(beside_floor, 0, 1),
            "transformers": ratio(beside_theirs, 1, 0),
            "tokens_per_s": round(num_tokens / statistics.median(turn[0] for turn in beside_floor), 1),
        }
        print(what, found, flush=True)
        return found

    def _compare_int8(self) -> float:
        step = StepBatch(decode_rows(1, 512))
        runs = [lambda: self._small.run(step, None), lambda: self._runner.run(step, None)]
        return ratio(by_turns(runs, NUM_TURNS), 1, 0)

    def _serve_parallel(self) -> float:
        ours = [lambda: answer_all(self._runner, PARALLEL, PARALLEL_PROMPT, PARALLEL_ANSWER)]
        theirs = [lambda: self._reference.answer_all(PARALLEL, PARALLEL_PROMPT, PARALLEL_ANSWER)]
        turns = by_turns([*ours, *theirs], 2)
        print(f"{PARALLEL} at once: {turns}", flush=True)
        return ratio(turns, 1, 0)


def pick(found: dict[str, dict[str, float]], what: str) -> dict[str, float]:
    return {name: each[what] for name, each in found.items()}


def settings_of(weights: WeightsName) -> TorchSettings:
    return TorchSettings(
        device="cpu",
        dtype="float32",
        weights=weights,
        num_threads=NUM_THREADS,
        block_size=BLOCK_SIZE,
        pool=PoolSize(num_blocks=NUM_BLOCKS),
        push_kib=128,
    )


def fill_pools(*runners: TorchRunner) -> None:
    """With numbers like KV, so that no product is one of zeros."""
    for runner in runners:
        runner.pool_NIGLKPD.normal_()


def main() -> None:
    print(json.dumps(Bench().run()))


if __name__ == "__main__":
    main()
