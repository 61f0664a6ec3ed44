"""An engine under test with all it says written down, stepped by hand."""

from dataclasses import dataclass, field

from proto.errors import Fault
from proto.events import BlocksStored, unpack_hashes
from proto.layout import LayerRange
from tests.workers.engine.witness_runner import VOCAB_SIZE, WitnessRunner
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceKind, SequenceSpec
from workers.engine.speculation import Drafting
from workers.engine.step import StepOutput

SALT = b"salt"
GREEDY = SampleParams()


def spec_of(
    name: str,
    tokens: list[int],
    *,
    kind: SequenceKind = SequenceKind.GENERATE,
    num_prompt: int = 0,
    max_tokens: int = 4,
    stop_tokens: frozenset[int] = frozenset(),
    priority: int = 0,
    salt: bytes = SALT,
    sample: SampleParams = GREEDY,
    min_tokens: int = 0,
    prompt_logprobs: int | None = None,
) -> SequenceSpec:
    return SequenceSpec(
        sequence=name,
        kind=kind,
        tokens=tokens,
        num_prompt=num_prompt or len(tokens),
        sample=sample,
        max_tokens=max_tokens,
        stop_tokens=stop_tokens,
        salt=salt,
        priority=priority,
        min_tokens=min_tokens,
        prompt_logprobs=prompt_logprobs,
    )


def prefill_of(name: str, tokens: list[int]) -> SequenceSpec:
    return spec_of(name, tokens, kind=SequenceKind.PREFILL)


def small_settings(
    *,
    num_blocks: int = 12,
    context_tokens: int = 40,
    step_tokens: int = 12,
    prefill_step_tokens: int = 0,
    max_sequences: int = 4,
    max_waiting: int = 8,
    max_failed_steps: int = 3,
    step_stall_s: float = 30.0,
) -> EngineSettings:
    return EngineSettings(
        num_blocks=num_blocks,
        context_tokens=context_tokens,
        block_size=4,
        vocab_size=VOCAB_SIZE,
        step_tokens=step_tokens,
        prefill_step_tokens=prefill_step_tokens,
        max_sequences=max_sequences,
        max_waiting=max_waiting,
        max_failed_steps=max_failed_steps,
        step_stall_s=step_stall_s,
    )


@dataclass
class Record:
    """The listener: what each sequence has got so far."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, bytes] = field(default_factory=dict)
    prompt_logprobs: dict[str, bytes] = field(default_factory=dict)
    finishes: dict[str, str] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
    frozen: set[str] = field(default_factory=set)
    layers: list[tuple[str, int, int, list[int], int, LayerRange]] = field(default_factory=list)

    def on_step(self, output: StepOutput) -> None:
        for event in output.events:
            known = self.tokens.setdefault(event.sequence, [])
            assert not event.prompt_logprobs or (event.tokens and not known), "they come with the first token"
            for told, records in (
                (self.prompt_logprobs, event.prompt_logprobs),
                (self.logprobs, event.logprobs),
            ):
                told[event.sequence] = told.get(event.sequence, b"") + records
            known += event.tokens
            if event.finish is not None:
                assert event.sequence not in self.finishes
                self.finishes[event.sequence] = event.finish
            if event.fault is not None:
                assert event.sequence not in self.faults
                self.faults[event.sequence] = event.fault
            if event.is_held:
                self.held.append(event.sequence)
            if event.is_frozen:
                self.frozen.add(event.sequence)

    def on_layers(
        self, sequence: str, start: int, end: int, blocks: list[int], rank: int, layers: LayerRange
    ) -> None:
        self.layers.append((sequence, start, end, blocks, rank, layers))


class Desk:
    """Engine, runner and listener, and a router's view of the cache kept from the events alone."""

    def __init__(self, settings: EngineSettings | None = None, drafting: Drafting | None = None) -> None:
        self.settings = settings or small_settings()
        self.runner = WitnessRunner(self.settings.num_blocks, self.settings.block_size)
        self.record = Record()
        self.engine = Engine(self.runner, self.settings, self.record, drafting)
        self.index: set[bytes] = set()

    def step_to_rest(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.engine.step_once():
                return
        raise AssertionError(f"not at rest after {max_steps} steps")

    def replay_events(self) -> None:
        for event in self.engine.take_events():
            for key in unpack_hashes(event.hashes):
                if isinstance(event, BlocksStored):
                    assert key not in self.index
                    self.index.add(key)
                else:
                    self.index.remove(key)

    def check(self, pinned: list[int] | None = None) -> None:
        """No block is lost or owned twice, the events tell the truth, and nobody read another's KV."""
        owned = [block for each in self.engine._books.sequences.values() for block in each.blocks]
        self.engine._books.ledger.pool.check([*owned, *(pinned or [])])
        self.replay_events()
        assert self.index == set(self.engine._books.ledger.cache._block_of)
        assert not self.runner.corruptions

    def assert_at_rest(self) -> None:
        self.check()
        load = self.engine.load()
        assert load.free_blocks == load.total_blocks
        assert (
            load.num_running == load.num_waiting == load.num_awaiting == load.num_held == load.num_frozen == 0
        )
        assert load.waiting_tokens == load.active_blocks == load.set_aside_blocks == 0
