"""What the tokens of a step see of their sequences' KV: all of it, or what lies in a window.

Every layer of a model keeps the KV of all tokens. A layer with a window reads the blocks that the window
touches; the rest of them is another layer's, or a later reader's.
"""

from dataclasses import dataclass
from itertools import accumulate

import msgspec
import torch

from workers.model.batch import Chunk, ForwardBatch, integers

SHORT_CONTEXT = 256
GROUP_SPREAD = 2
"""Contexts up to twice as long as another are padded alike, and all up to twice `SHORT_CONTEXT` tokens."""


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk of more than one token: its tokens in the step, and the KV that they see.

    `context` counts the places of the table up to the chunk's last token. The first of them is its first
    token's first visible one, or lies before that in the same block.
    """

    first: int
    num_tokens: int
    context: int
    window: int | None
    block_table_W: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of one token, the first of them token `first` of the step, that see about as many tokens.

    They are answered together, padded to the longest, which costs each as much as that one: a group of its
    own keeps a long sequence from slowing the short ones. A table shorter than W is padded with its own first
    block, so that a sequence never reads another's KV. Of a table's places, the first `hidden_B` lie before
    the window, if there is one, and those from `context_B` on past the sequence's last token. `stale_Y` are
    the latter within its last block, counted through the places of all tables.
    """

    first: int
    block_table_BW: torch.Tensor
    hidden_B: torch.Tensor | None
    context_B: torch.Tensor
    max_hidden: int
    max_context: int
    stale_Y: torch.Tensor

    @property
    def end(self) -> int:
        return self.first + len(self.context_B)


@dataclass(frozen=True, slots=True)
class Reach:
    """What one step's tokens see in layers with the same window. Decodes come first, in groups."""

    decodes: list[DecodeGroup]
    spans: list[Span]


class _Visible(msgspec.Struct, frozen=True):
    """The blocks that a chunk reads; in places counted from their beginning, what of them it sees."""

    blocks: list[int]
    hidden: int
    context: int


def plan_reach(batch: ForwardBatch, window: int | None, most_gathered: int | None) -> Reach:
    """What the tokens of `batch` see through `window`, or without one.

    No group of more than one sequence has more than `most_gathered` tokens in its tables, if that is given.
    """
    visible = [_visible(chunk, window, batch.block_size) for chunk in batch.chunks]
    num_decodes = sum(len(chunk.tokens) == 1 for chunk in batch.chunks)
    groups = _group(visible[:num_decodes], most_gathered)
    firsts = accumulate((len(group) for group in groups), initial=0)
    return Reach(
        decodes=[
            _decode_group(group, first, window, batch)
            for group, first in zip(groups, firsts, strict=False)  # the last is where the spans begin
        ],
        spans=_spans(batch.chunks[num_decodes:], visible[num_decodes:], num_decodes, window, batch),
    )


def _visible(chunk: Chunk, window: int | None, block_size: int) -> _Visible:
    first_place = 0 if window is None else max(0, chunk.start + 1 - window)
    first_block = first_place // block_size
    begin = first_block * block_size
    blocks = list(chunk.blocks[first_block : -(-chunk.end // block_size)])
    return _Visible(blocks, first_place - begin, chunk.end - begin)


def _group(decodes: list[_Visible], most_gathered: int | None) -> list[list[_Visible]]:
    """Each from one context length on to `GROUP_SPREAD` times that: so few groups, and so little padding."""
    groups: list[list[_Visible]] = []
    most_tokens = 0
    for seen in decodes:
        is_long = seen.context > most_tokens
        if is_long or (most_gathered is not None and (len(groups[-1]) + 1) * seen.context > most_gathered):
            groups.append([])
            most_tokens = GROUP_SPREAD * max(seen.context - 1, SHORT_CONTEXT)
        groups[-1].append(seen)
    return groups


def _spans(
    chunks: list[Chunk], visible: list[_Visible], first: int, window: int | None, batch: ForwardBatch
) -> list[Span]:
    spans = []
    for chunk, seen in zip(chunks, visible, strict=True):
        table_W = integers(seen.blocks, batch.device)
        spans.append(Span(first, len(chunk.tokens), seen.context, window, table_W))
        first += len(chunk.tokens)
    return spans


def _decode_group(group: list[_Visible], first: int, window: int | None, batch: ForwardBatch) -> DecodeGroup:
    width = max(len(seen.blocks) for seen in group)
    padded = [seen.blocks + seen.blocks[:1] * (width - len(seen.blocks)) for seen in group]
    contexts = [seen.context for seen in group]
    hidden = [seen.hidden for seen in group]
    return DecodeGroup(
        first=first,
        block_table_BW=integers(padded, batch.device),
        hidden_B=None if window is None else integers(hidden, batch.device),
        context_B=integers(contexts, batch.device),
        max_hidden=max(hidden),
        max_context=max(contexts),
        stale_Y=integers(_stale_places(group, width, batch.block_size), batch.device),
    )


def _stale_places(group: list[_Visible], width: int, block_size: int) -> list[int]:
    stale = []
    for row, seen in enumerate(group):
        last = (seen.context - 1) // block_size
        filled = (seen.context - 1) % block_size + 1
        copies = [last] if last else range(width)  # a single block is also what pads its table
        first = row * width
        stale += [
            (first + copy) * block_size + place for copy in copies for place in range(filled, block_size)
        ]
    return stale
