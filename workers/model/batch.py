"""What one forward computes: the tokens of all its sequences in one run, and where their KV lies in the pool.

```
tokens_T     [ one token of each decoding sequence | chunk | chunk | ... ]
              by length of context: decodes          spans
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workers.model.chunk import Chunk


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step, on the device. `chunks` are in its order: those of one token come first.

    `logit_rows_B` are the tokens whose logits are wanted, in the order of the chunks and, in each, of tokens.
    """

    chunks: list[Chunk]
    block_size: int
    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    blocks_T: torch.Tensor
    places_T: torch.Tensor
    logit_rows_B: torch.Tensor

    @property
    def device(self) -> torch.device:
        return self.tokens_T.device


def build_batch(chunks: Sequence[Chunk], block_size: int, device: torch.device) -> ForwardBatch:
    """Lays `chunks` out for one forward. Each has at least one token, and blocks for all of them."""
    order = sorted(range(len(chunks)), key=lambda index: _place_in_step(chunks[index]))
    laid_out = [chunks[index] for index in order]
    tokens = [token for chunk in laid_out for token in chunk.tokens]
    positions = [position for chunk in laid_out for position in _positions(chunk)]
    blocks = [chunk.blocks[position // block_size] for chunk in laid_out for position in _positions(chunk)]
    tokens_T, positions_T, blocks_T = integers([tokens, positions, blocks], device).unbind()
    return ForwardBatch(
        chunks=laid_out,
        block_size=block_size,
        tokens_T=tokens_T,
        positions_T=positions_T,
        blocks_T=blocks_T,
        places_T=positions_T % block_size,
        logit_rows_B=integers(_logit_rows(chunks, order), device),
    )


def integers(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def _positions(chunk: Chunk) -> range:
    return range(chunk.start, chunk.end)


def _place_in_step(chunk: Chunk) -> tuple[bool, int]:
    is_span = len(chunk.tokens) > 1
    return is_span, 0 if is_span else chunk.start


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
