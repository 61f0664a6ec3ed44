"""Decodes whose KV is read where it lies: sparse products, without a copy of the contexts.

Of the product of all queries with all the keys in the pool, a sparse one computes the numbers that are asked
for: a row for each query, a column for each place that it sees. The values at the same places are then summed
by what they weigh. Nothing is read but what is seen.
"""

import warnings

import torch

from workers.model.pool_rows import PoolRows
from workers.model.reach import DecodeGroup

with warnings.catch_warnings():  # torch says once in a process's life that these matrices are in beta
    warnings.simplefilter("ignore")
    torch.eye(1, device="cpu").to_sparse_csr()


def can_read_scattered(pool: PoolRows) -> bool:
    """Whether torch has these products for the pool, faster than a copy and the dense ones."""
    return pool.device.type == "cpu" and pool.dtype == torch.float32


class ScatteredDecodes:
    """One group of a step. A shorter context is padded with its own first place, at no weight."""

    def __init__(self, group: DecodeGroup, q_BHD: torch.Tensor, pool: PoolRows) -> None:
        self._pool = pool
        self._q_BHD = q_BHD
        self._scale = pool.head_dim**-0.5
        rows_BGS, is_past_BS = _seen_rows(group, pool)
        num_sharing = q_BHD.shape[1] // pool.num_kv_heads
        # The queries that share a KV head follow one another: what the first has read is near for the others.
        rows_BHS = rows_BGS.repeat_interleave(num_sharing, dim=1)
        num_places = rows_BHS.shape[-1]
        self._rows_Y = rows_BHS.flatten()
        self._firsts_Q = torch.arange(0, len(self._rows_Y), num_places, device=group.device)
        self._mask_B1S = None
        if is_past_BS is not None:
            mask_BS = torch.zeros(is_past_BS.shape, dtype=pool.dtype, device=group.device)
            self._mask_B1S = mask_BS.masked_fill_(is_past_BS, -torch.inf)[:, None]
        self._scores_QR = torch.sparse_csr_tensor(
            torch.arange(0, len(self._rows_Y) + 1, num_places, device=group.device),
            self._rows_Y,
            torch.zeros(len(self._rows_Y), dtype=pool.dtype, device=group.device),
            size=(len(self._firsts_Q), pool.num_seen),
            device=group.device,
            check_invariants=False,
        )
        self._scores_BHS = self._scores_QR.values().view_as(rows_BHS)

    def attend(self, layer: int) -> torch.Tensor:
        q_QD, k_DR, v_RD = self._q_BHD.flatten(0, 1), self._pool.keys_DR[layer], self._pool.values_RD[layer]
        torch.sparse.sampled_addmm(
            self._scores_QR, q_QD, k_DR, beta=0.0, alpha=self._scale, out=self._scores_QR
        )
        scores_BHS = self._scores_BHS if self._mask_B1S is None else self._scores_BHS + self._mask_B1S
        weights_BHS = scores_BHS.softmax(dim=-1)
        answer_QD, *_ = torch.embedding_bag(
            v_RD, self._rows_Y, self._firsts_Q, per_sample_weights=weights_BHS.view(-1)
        )
        return answer_QD.view(len(self._q_BHD), -1)


def _seen_rows(group: DecodeGroup, pool: PoolRows) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where in the pool each sequence's visible places lie, for each KV head, `rows_BGS`, and which of them
    are padding, `is_past_BS`, if any is."""
    num_seen = [seen.context - seen.hidden for seen in group.seen]
    hidden_B1 = group.hidden()[:, None]
    places_BS = hidden_B1 + torch.arange(max(num_seen), device=group.device)
    is_past_BS = None
    if min(num_seen) < max(num_seen):
        is_past_BS = places_BS >= group.contexts()[:, None]
        places_BS = places_BS.where(~is_past_BS, hidden_B1)
    blocks_BS = group.tables().gather(1, places_BS // pool.block_size)
    rows_BSG = pool.key_rows(blocks_BS, places_BS % pool.block_size)
    return rows_BSG.transpose(1, 2), is_past_BS
