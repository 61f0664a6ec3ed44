"""What the tokens must be: those of one runner of one rank in this process, a step for each."""

from pathlib import Path

from workers.engine.runner import SampleParams, ScheduledSequence, StepBatch
from workers.engine.torch_loading import load_torch_runner
from workers.engine.torch_settings import PoolSize, TorchSettings

BLOCK_SIZE, NUM_BLOCKS = 16, 128


class OneProcess:
    """Takes one sequence at a time, whose KV begins with its pool."""

    def __init__(self, model: Path) -> None:
        settings = TorchSettings(
            device="cpu",
            dtype="auto",
            weights="full",
            num_threads=1,
            block_size=BLOCK_SIZE,
            pool=PoolSize(num_blocks=NUM_BLOCKS),
            push_kib=1,
        )
        self._runner = load_torch_runner(model, settings)

    def tokens(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The likeliest, so many of them."""
        found = self._step(prompt, 0)
        while len(found) < num_tokens:
            found += self._step(found[-1:], len(prompt) + len(found) - 1)
        return found

    def _step(self, tokens: list[int], start: int) -> list[int]:
        row = ScheduledSequence(tokens, start, list(range(NUM_BLOCKS)), SampleParams(), key=0)
        (result,) = self._runner.run(StepBatch([row]), None)
        return result.tokens
