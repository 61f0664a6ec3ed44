"""A runner whose KV is a witness: each place holds its token and a fingerprint of all tokens up to it.

It samples from the fingerprint it finds in the pool, so a token is right only if every block of its sequence
holds what it should. `corruptions` names the steps that read a place with another sequence's KV in it, or
count other tokens than the sequence has. A record of log-probabilities says whose it is: position and token.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from proto.layout import PoolLayout
from proto.logprobs import TokenLogprobs, pack_logprobs
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


def sample(mark: int, banned: frozenset[int] = frozenset()) -> int:
    """The first that is not banned, from what the mark says on."""
    tokens = ((mark % 9_973 + step) % VOCAB_SIZE for step in range(VOCAB_SIZE))
    return next(token for token in tokens if token not in banned)


def record_of(position: int, token: int, num_best: int) -> bytes:
    return pack_logprobs([TokenLogprobs(-float(position), token, [(token, 0.0)] * num_best)])


def expect_records(tokens: list[int], start: int, num_best: int | None) -> bytes:
    """Those of `tokens`, the first at position `start`; none where none are wanted."""
    if num_best is None:
        return b""
    return b"".join(record_of(position, token, num_best) for position, token in enumerate(tokens, start))


def expect_tokens(spec: SequenceSpec, context_tokens: int) -> tuple[list[int], str]:
    """What a GENERATE must give, by the plainest loop there is: its tokens and how it ends."""
    mark = 0
    for token in spec.tokens:
        mark = fingerprint(mark, token)
    made: list[int] = []
    while True:
        num_generated = len(spec.tokens) - spec.num_prompt + len(made)
        made.append(sample(mark, spec.stop_tokens if num_generated < spec.min_tokens else frozenset()))
        mark = fingerprint(mark, made[-1])
        if made[-1] in spec.stop_tokens:
            return made, "stop"
        length = len(spec.tokens) + len(made)
        if length - spec.num_prompt >= spec.max_tokens or length >= context_tokens:
            return made, "length"


def _draw(row: ScheduledSequence, marks: list[int]) -> list[int]:
    """What follows each mark, up to the first that no draft foresaw."""
    tokens: list[int] = []
    for place, mark in enumerate(marks[row.num_given - 1 :]):
        tokens.append(sample(mark, row.banned if place < row.num_banned else frozenset()))
        if [tokens[-1]] != row.drafts[place : place + 1]:
            break
    return tokens


def _result(row: ScheduledSequence, marks: list[int]) -> RowResult:
    tokens, logprobs = [], b""
    if row.sample is not None:
        tokens = _draw(row, marks)
        logprobs = expect_records(tokens, row.start + row.num_given, row.sample.logprobs)
    scores = row.scores
    prompt_logprobs = (
        b"" if scores is None else expect_records(scores.targets, row.start + 1, scores.num_best)
    )
    return RowResult(row.key, tokens, logprobs, prompt_logprobs)


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
    dtype: str = "float32"
    pools: tuple[PoolLayout, ...] = ()

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
        marks = [self._compute(row) for row in batch.rows]
        sampled = [_result(row, each) for row, each in zip(batch.rows, marks, strict=True) if row.num_logits]
        if on_layers is not None:
            on_layers(0, 0, 1)
            on_layers(0, 1, 2)
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

    def _compute(self, row: ScheduledSequence) -> list[int]:
        """The marks of its tokens."""
        mark, marks = 0, []
        seen = set(row.tokens[: row.num_given])
        for position in range(row.start):
            block, place = divmod(position, self.block_size)
            token, found = self._pool[row.blocks[block]][place]
            seen.add(token)
            mark = fingerprint(mark, token)
            if mark != found:
                self.corruptions.append(f"row {row.key} at {position}: {found}, not {mark}")
        for position, token in enumerate(row.tokens, row.start):
            mark = fingerprint(mark, token)
            marks.append(mark)
            block, place = divmod(position, self.block_size)
            self._pool[row.blocks[block]][place] = (token, mark)
        if row.counts is not None and set(row.counts.tokens) != seen:
            self.corruptions.append(f"row {row.key} counts other tokens than it has")
        return marks

    def _check_apart(self, rows: Iterable[ScheduledSequence]) -> None:
        written: set[int] = set()
        for row in rows:
            last = row.start + len(row.tokens) - 1
            mine = set(row.blocks[row.start // self.block_size : last // self.block_size + 1])
            if mine & written:
                self.corruptions.append(f"row {row.key} writes where another does")
            written |= mine
