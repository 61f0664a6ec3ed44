"""Work for the engine's benchmark: rows of a step, whole answers, and what is left when nothing computes."""

import random
import time

from proto.layout import LayerRange
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.runner import Runner, SampleParams, ScheduledSequence
from workers.engine.sequence import SequenceKind, SequenceSpec
from workers.engine.simulated_model import WITHOUT_TIME
from workers.engine.simulated_runner import SimulatedRunner
from workers.engine.step import StepOutput

BLOCK_SIZE = 16
VOCAB_SIZE = 40_000
GREEDY = SampleParams()
NUM_STEPS = 200


class Heard:
    """The listener: counts tokens and ends."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_ended = 0

    def on_step(self, output: StepOutput) -> None:
        for event in output.events:
            self.num_tokens += len(event.tokens)
            self.num_ended += event.finish is not None

    def on_layers(
        self, sequence: str, start: int, end: int, blocks: list[int], rank: int, layers: LayerRange
    ) -> None:
        raise AssertionError("nothing is prefilled for others here")


def decode_rows(batch: int, context: int) -> list[ScheduledSequence]:
    """One token for each of `batch` sequences, `context` long with it; blocks of each are scattered."""
    draw = random.Random(batch * context)
    num_blocks = -(-context // BLOCK_SIZE)
    blocks = draw.sample(range(batch * num_blocks), batch * num_blocks)
    return [
        ScheduledSequence(
            tokens=[draw.randrange(VOCAB_SIZE)],
            start=context - 1,
            blocks=blocks[row * num_blocks : (row + 1) * num_blocks],
            sample=GREEDY,
            key=row,
        )
        for row in range(batch)
    ]


def prompt_row(length: int) -> ScheduledSequence:
    """A whole prompt in one step."""
    draw = random.Random(length)
    blocks = draw.sample(range(-(-length // BLOCK_SIZE)), -(-length // BLOCK_SIZE))
    return ScheduledSequence(random_prompt(length, length), 0, blocks, GREEDY, 0)


def random_prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(100, VOCAB_SIZE) for _ in range(length)]


def open_engine(runner: Runner, heard: Heard) -> Engine:
    settings = EngineSettings(
        num_blocks=runner.num_blocks,
        context_tokens=2048,
        block_size=runner.block_size,
        vocab_size=VOCAB_SIZE,
        step_tokens=512,
        max_sequences=64,
    )
    return Engine(runner, settings, heard)


def answer_all(runner: Runner, num_requests: int, prompt_tokens: int, answer_tokens: int) -> None:
    """All at once, each to its last token. Prompts are new to the engine, whose cache begins empty."""
    heard = Heard()
    engine = open_engine(runner, heard)
    for number in range(num_requests):
        engine.add(spec_of(number, prompt_tokens, answer_tokens))
    while engine.step_once():
        pass
    assert heard.num_ended == num_requests
    assert heard.num_tokens == num_requests * answer_tokens


def spec_of(number: int, prompt_tokens: int, answer_tokens: int) -> SequenceSpec:
    return SequenceSpec(
        sequence=str(number),
        kind=SequenceKind.GENERATE,
        tokens=random_prompt(prompt_tokens, number),
        num_prompt=prompt_tokens,
        sample=GREEDY,
        max_tokens=answer_tokens,
        stop_tokens=frozenset(),
        salt=b"",
    )


def bookkeeping_s(batch: int) -> float:
    """Seconds of a step of so many decodes around a runner that takes no time of its own to speak of."""
    runner = SimulatedRunner(WITHOUT_TIME, num_blocks=64 * 64, block_size=BLOCK_SIZE)
    engine = open_engine(runner, Heard())
    for number in range(batch):
        engine.add(spec_of(number, 512, 1000))
    while engine.load().num_waiting or engine.load().waiting_tokens:
        engine.step_once()
    began_s = time.perf_counter()
    for _ in range(NUM_STEPS):
        engine.step_once()
    return (time.perf_counter() - began_s) / NUM_STEPS
