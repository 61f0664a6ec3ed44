"""What one forward computes: the tokens of all its sequences in one run, and where their KV lies in the pool.

```
tokens_T     [ one token of each decoding sequence | chunk | chunk | ... ]
              by length of context: decodes          spans
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import torch

SHORT_CONTEXT = 256
GROUP_SPREAD = 2
"""Contexts up to twice as long as another are padded alike, and all up to twice `SHORT_CONTEXT` tokens."""


class Chunk(msgspec.Struct, frozen=True):
    """Some tokens of one sequence, the first at position `start`; `blocks` is the sequence's block table.

    The logits of its last `num_logits` tokens are wanted.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_logits: int


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk of more than one token: its tokens in the step, and the KV that they see."""

    first: int
    num_tokens: int
    context: int  # tokens of the sequence in the pool once this step's are
    block_table_W: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of one token, the first of them token `first` of the step, whose contexts are about as long.

    They are answered together, padded to the longest, which costs each as much as that one: a group of its
    own keeps a long sequence from slowing the short ones. A table shorter than W is padded with its own first
    block, so that a sequence never reads another's KV. `stale_Y` are the places of the tables, counted
    through all of them, that lie in a sequence's last block past its last token.
    """

    first: int
    block_table_BW: torch.Tensor
    context_B: torch.Tensor
    max_context: int
    stale_Y: torch.Tensor

    @property
    def end(self) -> int:
        return self.first + len(self.context_B)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step, on the device. Sequences of one token come first, the others follow as spans.

    `logit_rows_B` are the tokens whose logits are wanted, in the order of the chunks and, in each, of tokens.
    """

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    blocks_T: torch.Tensor
    places_T: torch.Tensor
    decodes: list[DecodeGroup]
    spans: list[Span]
    logit_rows_B: torch.Tensor


def build_batch(chunks: Sequence[Chunk], block_size: int, device: torch.device) -> ForwardBatch:
    """Lays `chunks` out for one forward. Each has at least one token, and blocks for all of them."""
    order = sorted(range(len(chunks)), key=lambda index: _place_in_step(chunks[index]))
    laid_out = [chunks[index] for index in order]
    decodes = [chunk for chunk in laid_out if len(chunk.tokens) == 1]
    tokens = [token for chunk in laid_out for token in chunk.tokens]
    positions = [position for chunk in laid_out for position in _positions(chunk)]
    blocks = [chunk.blocks[position // block_size] for chunk in laid_out for position in _positions(chunk)]
    tokens_T, positions_T, blocks_T = _integers([tokens, positions, blocks], device).unbind()
    return ForwardBatch(
        tokens_T=tokens_T,
        positions_T=positions_T,
        blocks_T=blocks_T,
        places_T=positions_T % block_size,
        decodes=_decode_groups(decodes, block_size, device),
        spans=_spans(laid_out[len(decodes) :], len(decodes), block_size, device),
        logit_rows_B=_integers(_logit_rows(chunks, order), device),
    )


def _integers(values: list[int] | list[list[int]], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def _positions(chunk: Chunk) -> range:
    return range(chunk.start, chunk.start + len(chunk.tokens))


def _place_in_step(chunk: Chunk) -> tuple[bool, int]:
    is_span = len(chunk.tokens) > 1
    return is_span, 0 if is_span else chunk.start


def _decode_groups(decodes: list[Chunk], block_size: int, device: torch.device) -> list[DecodeGroup]:
    """Each from one context length on to `GROUP_SPREAD` times that: so few groups, and so little padding."""
    groups: list[list[Chunk]] = []
    most_tokens = 0
    for chunk in decodes:
        if chunk.start >= most_tokens:
            groups.append([])
            most_tokens = GROUP_SPREAD * max(chunk.start, SHORT_CONTEXT)
        groups[-1].append(chunk)
    firsts = accumulate((len(group) for group in groups), initial=0)
    return [
        _decode_group(group, first, block_size, device)
        for group, first in zip(groups, firsts, strict=False)  # the last of these is where the spans begin
    ]


def _decode_group(chunks: list[Chunk], first: int, block_size: int, device: torch.device) -> DecodeGroup:
    tables = [_used_blocks(chunk, block_size) for chunk in chunks]
    width = max(len(table) for table in tables)
    padded = [table + table[:1] * (width - len(table)) for table in tables]
    contexts = [chunk.start + 1 for chunk in chunks]
    return DecodeGroup(
        first=first,
        block_table_BW=_integers(padded, device),
        context_B=_integers(contexts, device),
        max_context=max(contexts),
        stale_Y=_integers(_stale_places(chunks, padded, block_size), device),
    )


def _stale_places(decodes: list[Chunk], tables: list[list[int]], block_size: int) -> list[int]:
    stale = []
    for row, (chunk, table) in enumerate(zip(decodes, tables, strict=True)):
        last = chunk.start // block_size
        filled = chunk.start % block_size + 1
        copies = [last] if last else range(len(table))  # a single block is also what pads its table
        first = row * len(table)
        stale += [
            (first + copy) * block_size + place for copy in copies for place in range(filled, block_size)
        ]
    return stale


def _used_blocks(chunk: Chunk, block_size: int) -> list[int]:
    context = chunk.start + len(chunk.tokens)
    return list(chunk.blocks[: -(-context // block_size)])


def _spans(chunks: list[Chunk], first: int, block_size: int, device: torch.device) -> list[Span]:
    spans = []
    for chunk in chunks:
        table_W = _integers(_used_blocks(chunk, block_size), device)
        spans.append(Span(first, len(chunk.tokens), chunk.start + len(chunk.tokens), table_W))
        first += len(chunk.tokens)
    return spans


def _logit_rows(chunks: Sequence[Chunk], order: list[int]) -> list[int]:
    """The last tokens of each chunk that wants logits, found where `order` has put it."""
    end_of: dict[int, int] = {}
    end = 0
    for index in order:
        end += len(chunks[index].tokens)
        end_of[index] = end
    return [
        row
        for index, chunk in enumerate(chunks)
        for row in range(end_of[index] - chunk.num_logits, end_of[index])
    ]
