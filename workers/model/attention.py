"""Attention over the paged pool: one step's KV written to its places, its queries answered from the pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from workers.model.batch import ForwardBatch
from workers.model.gathered_decodes import GatheredDecodes, most_gathered
from workers.model.pool_rows import PoolRows
from workers.model.reach import Span, plan_reach
from workers.model.scattered_decodes import ScatteredDecodes, can_read_scattered


class Decodes(Protocol):
    """A group of sequences of one token."""

    def attend(self, layer: int) -> torch.Tensor:
        """What each sequence's queries find in its KV of that layer: `[B, H x D]`."""
        ...


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One chunk of a prompt. `mask_TS` is None when it sees nothing before it: then it is simply causal."""

    q_1HTD: torch.Tensor
    context: int
    rows: torch.Tensor
    mask_TS: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the queries of one step are answered in layers with the same window."""

    decodes: list[Decodes]
    prompts: list[_Prompt]


class PagedAttention:
    """One step's view of the pool. Made for a batch, used once by each layer, whose queries lie in `q_THD`.

    `windows` says for each layer how many tokens a token sees, None: all.
    """

    def __init__(
        self, batch: ForwardBatch, pool: PoolRows, q_THD: torch.Tensor, windows: Sequence[int | None]
    ) -> None:
        self._pool = pool
        self._q_THD = q_THD
        self._written_rows = pool.kv_rows(batch.blocks_T, batch.places_T).flatten()
        plans = {window: self._plan(batch, window) for window in set(windows)}
        self._plans = [plans[window] for window in windows]

    def write(self, layer: int, kv_TXD: torch.Tensor) -> None:
        """Stores this step's KV of one layer: for each token all its key heads, then all its value heads.

        Mutates: the pool.
        """
        self._pool.store(layer, self._written_rows, kv_TXD.flatten(0, 1))

    def attend(self, layer: int) -> torch.Tensor:
        """What each token's queries find in the KV of its sequence up to itself: `[T, H x D]`."""
        plan = self._plans[layer]
        answers = [decodes.attend(layer) for decodes in plan.decodes]
        answers += [self._prefill(prompt, layer) for prompt in plan.prompts]
        return answers[0] if len(answers) == 1 else torch.cat(answers)

    def _prefill(self, plan: _Prompt, layer: int) -> torch.Tensor:
        gathered_RX = self._pool.runs(layer).index_select(0, plan.rows)
        kv_2GSD = gathered_RX.view(2, self._pool.num_kv_heads, -1, self._pool.head_dim)
        k_1GSD, v_1GSD = kv_2GSD[:, None, :, : plan.context]
        answer_1HTD = scaled_dot_product_attention(
            plan.q_1HTD,
            k_1GSD,
            v_1GSD,
            attn_mask=plan.mask_TS,
            is_causal=plan.mask_TS is None,
            enable_gqa=True,
        )
        return answer_1HTD[0].transpose(0, 1).flatten(1)

    def _plan(self, batch: ForwardBatch, window: int | None) -> _Plan:
        reads_scattered = can_read_scattered(self._pool)
        reach = plan_reach(batch, window, None if reads_scattered else most_gathered(self._pool))
        decodes: list[Decodes] = [
            (ScatteredDecodes if reads_scattered else GatheredDecodes)(
                group, self._q_THD[group.first : group.end], self._pool
            )
            for group in reach.decodes
        ]
        return _Plan(decodes, [self._plan_prompt(span) for span in reach.spans])

    def _plan_prompt(self, span: Span) -> _Prompt:
        q_1HTD = self._q_THD[span.first : span.first + span.num_tokens].transpose(0, 1)[None]
        rows = self._pool.run_rows(span.block_table_W).permute(1, 2, 0).flatten()
        has_window = span.window is not None and span.window < span.context
        if span.num_tokens == span.context and not has_window:
            return _Prompt(q_1HTD, span.context, rows, None)
        places_S = torch.arange(span.context, device=span.block_table_W.device)
        own_places_T1 = places_S[-span.num_tokens :, None]
        is_hidden_TS = places_S > own_places_T1
        if span.window is not None:
            is_hidden_TS |= places_S <= own_places_T1 - span.window
        mask_TS = torch.zeros(is_hidden_TS.shape, dtype=self._pool.dtype, device=self._pool.device)
        return _Prompt(q_1HTD, span.context, rows, mask_TS.masked_fill_(is_hidden_TS, -torch.inf))
