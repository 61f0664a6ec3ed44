"""Decodes whose KV is copied together first: dense products, on any device and in any dtype."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from workers.model.pool_rows import PoolRows
from workers.model.reach import DecodeGroup

_GATHERED_BYTES = 3 * 2**19
"""What one gather copies of a layer's KV on a CPU: so much stays in a core's second cache until it is read. A
batch of 32 contexts of 512 that was gathered at once was written to memory and read back."""


def most_gathered(pool: PoolRows) -> int | None:
    """How many tokens of a layer one gather may copy on a CPU; None, any, on other devices."""
    if pool.device.type != "cpu":
        return None
    return _GATHERED_BYTES // (2 * pool.num_kv_heads * pool.head_dim * pool.dtype.itemsize)


class GatheredDecodes:
    """One group of a step, answered over contexts padded to the longest; a single one is cut to what it sees.

    A mask hides the padding, and what lies before the window. The rows of the gathered KV that lie past a
    context's end in its last block hold what an earlier owner of the block left, and even a masked NaN would
    spoil the sum, so they are zeroed.
    """

    def __init__(self, group: DecodeGroup, q_BHD: torch.Tensor, pool: PoolRows) -> None:
        self._group = group
        self._pool = pool
        # The query heads that share a KV head stand where a longer query would have its tokens.
        self._q_BGRD = q_BHD.view(len(q_BHD), pool.num_kv_heads, -1, pool.head_dim)
        runs_2BGW = pool.run_rows(group.tables()).permute(2, 0, 3, 1)
        self._rows = runs_2BGW.flatten()
        self._is_padded = len(group.seen) > 1
        if self._is_padded:
            self._mask_B11S = _mask(group, pool)[:, None, None]
            self._stale_rows = _stale_rows(group, pool)

    def attend(self, layer: int) -> torch.Tensor:
        num_rows, num_kv_heads, _, head_dim = self._q_BGRD.shape
        gathered_RX = self._pool.runs(layer).index_select(0, self._rows)
        kv_2BGSD = gathered_RX.view(2, num_rows, num_kv_heads, -1, head_dim)
        mask_B11S = None
        if self._is_padded:
            gathered_RX.view(-1, head_dim).index_fill_(0, self._stale_rows, 0.0)
            mask_B11S = self._mask_B11S
        else:
            (seen,) = self._group.seen
            kv_2BGSD = kv_2BGSD[:, :, :, seen.hidden : seen.context]
        answer_BGRD = scaled_dot_product_attention(
            self._q_BGRD, kv_2BGSD[0], kv_2BGSD[1], attn_mask=mask_B11S
        )
        return answer_BGRD.flatten(1)


def _mask(group: DecodeGroup, pool: PoolRows) -> torch.Tensor:
    places_S = torch.arange(group.width * pool.block_size, device=group.device)
    is_hidden_BS = places_S >= group.contexts()[:, None]
    if group.has_hidden:
        is_hidden_BS |= places_S < group.hidden()[:, None]
    mask_BS = torch.zeros(is_hidden_BS.shape, dtype=pool.dtype, device=group.device)
    return mask_BS.masked_fill_(is_hidden_BS, -torch.inf)


def _stale_rows(group: DecodeGroup, pool: PoolRows) -> torch.Tensor:
    num_rows, num_places = len(group.seen), group.width * pool.block_size
    stale_Y = torch.tensor(_stale_places(group, pool.block_size), dtype=torch.int64, device=group.device)
    row_Y, place_Y = stale_Y // num_places, stale_Y % num_places
    heads_G1 = torch.arange(pool.num_kv_heads, device=group.device)[:, None]
    keys_GY = (row_Y * pool.num_kv_heads + heads_G1) * num_places + place_Y
    values_GY = keys_GY + num_rows * pool.num_kv_heads * num_places
    return torch.cat((keys_GY, values_GY)).flatten()


def _stale_places(group: DecodeGroup, block_size: int) -> list[int]:
    """Past each context's end in its last block, counted through the places of all tables."""
    stale = []
    for row, seen in enumerate(group.seen):
        last = (seen.context - 1) // block_size
        filled = (seen.context - 1) % block_size + 1
        copies = [last] if last else range(group.width)  # a single block is also what pads its table
        first = row * group.width
        stale += [
            (first + copy) * block_size + place for copy in copies for place in range(filled, block_size)
        ]
    return stale
