"""A runner whose KV is a witness: each place holds its token and a fingerprint of all tokens up to it.

It samples from the fingerprint it finds in the pool, so a token is right only if every block of its sequence
holds what it should. `corruptions` names the steps that read a place with another sequence's KV in it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from workers.engine.runner import (
    IsWanted,
    OnLayers,
    RowResult,
    ScheduledSequence,
    StepAbandoned,
    StepBatch,
    always_wanted,
)
from workers.engine.sequence import SequenceSpec

VOCAB_SIZE = 50
Place = tuple[int, int]


def fingerprint(before: int, token: int) -> int:
    return (before * 1_000_003 + token + 1) % (1 << 61)


def sample(mark: int) -> int:
    return mark % 9_973 % VOCAB_SIZE


def expect_tokens(spec: SequenceSpec, context_tokens: int) -> tuple[list[int], str]:
    """What a GENERATE must give, by the plainest loop there is: its tokens and how it ends."""
    mark = 0
    for token in spec.tokens:
        mark = fingerprint(mark, token)
    made: list[int] = []
    while True:
        made.append(sample(mark))
        mark = fingerprint(mark, made[-1])
        if made[-1] in spec.stop_tokens:
            return made, "stop"
        length = len(spec.tokens) + len(made)
        if length - spec.num_prompt >= spec.max_tokens or length >= context_tokens:
            return made, "length"


@dataclass
class WitnessRunner:
    """`fail_next` makes one step raise, `bad_next` gives its first row no finite logits, `during` is called
    in mid-step. Each of them once."""

    num_blocks: int
    block_size: int
    fail_next: bool = False
    bad_next: bool = False
    during: Callable[[], object] | None = None
    corruptions: list[str] = field(default_factory=list)
    batches: list[list[tuple[int, int]]] = field(default_factory=list)
    num_layers: int = 3
    num_kv_heads: int = 1
    head_dim: int = 1
    itemsize: int = 4
    dtype: str = "float32"
    pool_address: int = 0
    pool_bytes: int = 0
    pool_device: str = "cpu"

    def __post_init__(self) -> None:
        self._pool: list[list[Place]] = [[(0, 0)] * self.block_size for _ in range(self.num_blocks)]

    def run(
        self, batch: StepBatch, on_layers: OnLayers | None, is_wanted: IsWanted = always_wanted
    ) -> list[RowResult]:
        during, self.during = self.during, None
        if during is not None:
            during()
        if not is_wanted():
            raise StepAbandoned
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("told to fail")
        self.batches.append([(row.start, len(row.tokens)) for row in batch.rows])
        self._check_apart(batch.rows)
        sampled = [
            RowResult(row.key, [sample(mark)])
            for row, mark in [(row, self._compute(row)) for row in batch.rows]
            if row.sample is not None
        ]
        if on_layers is not None:
            on_layers(0, 1)
            on_layers(1, 2)
        if self.bad_next and sampled:
            self.bad_next = False
            sampled[0] = RowResult(sampled[0].key, failed=True)
        return sampled

    def fill(self, blocks: list[int], tokens: list[int], start: int) -> None:
        """Writes the KV of `tokens[start:]` into `blocks`, as a peer would; `start` begins a block."""
        mark = 0
        for position, token in enumerate(tokens):
            mark = fingerprint(mark, token)
            if position >= start:
                block, place = divmod(position - start, self.block_size)
                self._pool[blocks[block]][place] = (token, mark)

    def holds(self, blocks: list[int], tokens: list[int]) -> bool:
        """Whether `blocks` hold the KV of `tokens`."""
        mark = 0
        for position, token in enumerate(tokens):
            mark = fingerprint(mark, token)
            block, place = divmod(position, self.block_size)
            if self._pool[blocks[block]][place] != (token, mark):
                return False
        return True

    def _compute(self, row: ScheduledSequence) -> int:
        mark = 0
        for position in range(row.start):
            block, place = divmod(position, self.block_size)
            token, found = self._pool[row.blocks[block]][place]
            mark = fingerprint(mark, token)
            if mark != found:
                self.corruptions.append(f"row {row.key} at {position}: {found}, not {mark}")
        for position, token in enumerate(row.tokens, row.start):
            mark = fingerprint(mark, token)
            block, place = divmod(position, self.block_size)
            self._pool[row.blocks[block]][place] = (token, mark)
        return mark

    def _check_apart(self, rows: Iterable[ScheduledSequence]) -> None:
        written: set[int] = set()
        for row in rows:
            last = row.start + len(row.tokens) - 1
            mine = set(row.blocks[row.start // self.block_size : last // self.block_size + 1])
            if mine & written:
                self.corruptions.append(f"row {row.key} writes where another does")
            written |= mine
