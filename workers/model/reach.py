"""What the tokens of a step see of their sequences' KV: all of it, or what lies in a window.

Every layer of a model keeps the KV of all tokens. A layer with a window reads the blocks that the window
touches; the rest of them is another layer's, or a later reader's.
"""

from dataclasses import dataclass
from itertools import accumulate

import msgspec
import torch

from workers.model.batch import ForwardBatch, integers
from workers.model.chunk import Chunk

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


class Visible(msgspec.Struct, frozen=True):
    """The blocks that a chunk reads. Of their places, counted from the first, the first `hidden` lie before
    the window, if there is one, and those from `context` on past the chunk's last token."""

    blocks: list[int]
    hidden: int
    context: int


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of one token, the first of them token `first` of the step, that see about as many tokens.

    They are answered together, padded to the longest, which costs each as much as that one: a group of its
    own keeps a long sequence from slowing the short ones.
    """

    first: int
    seen: list[Visible]
    device: torch.device

    @property
    def end(self) -> int:
        return self.first + len(self.seen)

    @property
    def width(self) -> int:
        return max(len(seen.blocks) for seen in self.seen)

    @property
    def has_hidden(self) -> bool:
        return any(seen.hidden for seen in self.seen)

    def tables(self) -> torch.Tensor:
        """`[B, W]`. A shorter table is padded with its own first block: no sequence reads another's KV."""
        width = self.width
        padded = [seen.blocks + seen.blocks[:1] * (width - len(seen.blocks)) for seen in self.seen]
        return integers(padded, self.device)

    def hidden(self) -> torch.Tensor:
        return integers([seen.hidden for seen in self.seen], self.device)

    def contexts(self) -> torch.Tensor:
        return integers([seen.context for seen in self.seen], self.device)


@dataclass(frozen=True, slots=True)
class Reach:
    """What one step's tokens see in layers with the same window. Decodes come first, in groups."""

    decodes: list[DecodeGroup]
    spans: list[Span]


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
            DecodeGroup(first, group, batch.device)
            for group, first in zip(groups, firsts, strict=False)  # the last is where the spans begin
        ],
        spans=_spans(batch.chunks[num_decodes:], visible[num_decodes:], num_decodes, window, batch),
    )


def _visible(chunk: Chunk, window: int | None, block_size: int) -> Visible:
    first_place = 0 if window is None else max(0, chunk.start + 1 - window)
    first_block = first_place // block_size
    begin = first_block * block_size
    blocks = list(chunk.blocks[first_block : -(-chunk.end // block_size)])
    return Visible(blocks, first_place - begin, chunk.end - begin)


def _group(decodes: list[Visible], most_gathered: int | None) -> list[list[Visible]]:
    """Each from one context length on to `GROUP_SPREAD` times that: so few groups, and so little padding."""
    groups: list[list[Visible]] = []
    most_tokens = 0
    for seen in decodes:
        is_long = seen.context > most_tokens
        if is_long or (most_gathered is not None and (len(groups[-1]) + 1) * seen.context > most_gathered):
            groups.append([])
            most_tokens = GROUP_SPREAD * max(seen.context - 1, SHORT_CONTEXT)
        groups[-1].append(seen)
    return groups


def _spans(
    chunks: list[Chunk], visible: list[Visible], first: int, window: int | None, batch: ForwardBatch
) -> list[Span]:
    spans = []
    for chunk, seen in zip(chunks, visible, strict=True):
        table_W = integers(seen.blocks, batch.device)
        spans.append(Span(first, len(chunk.tokens), seen.context, window, table_W))
        first += len(chunk.tokens)
    return spans
