"""Attention over the paged pool: one step's KV written to its places, its queries answered from the pool.

The pool `[N, L, 2, G, P, D]` is read and written as rows of flat views, so that a gather is one copy of whole
runs and needs no transposing after it. Row numbers are worked out once a step, for layer 0; a layer's view
starts where its first row lies, so the same numbers serve every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from workers.model.batch import ForwardBatch
from workers.model.reach import DecodeGroup, Span, plan_reach

_GATHERED_BYTES = 3 * 2**19
"""What one gather copies of a layer's KV on a CPU: so much stays in a core's second cache until it is read. A
batch of 32 contexts of 512 that was gathered at once was written to memory and read back."""


@dataclass(frozen=True, slots=True)
class _Decodes:
    """A group of sequences of one token, answered together over contexts padded to the longest.

    `mask_B11S` hides the padding, and what lies before the window. `stale_rows` are the rows of the gathered
    KV that lie past a context's end in its last block: they hold what an earlier owner of the block left, and
    even a masked NaN would spoil the sum, so they are zeroed. Both are None for a single context, which is
    cut to what it sees instead.
    """

    group: DecodeGroup
    rows: torch.Tensor
    mask_B11S: torch.Tensor | None
    stale_rows: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One chunk of a prompt. `mask_TS` is None when it sees nothing before it: then it is simply causal."""

    span: Span
    rows: torch.Tensor
    mask_TS: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the queries of one step are answered in layers with the same window."""

    decodes: list[_Decodes]
    prompts: list[_Prompt]


class PagedAttention:
    """One step's view of the pool. Made for a batch, used once by each layer.

    `windows` says for each layer how many tokens a token sees, None: all.
    """

    def __init__(self, batch: ForwardBatch, pool_NLKGPD: torch.Tensor, windows: Sequence[int | None]) -> None:
        _, self._num_layers, _, self._num_kv_heads, self._block_size, self._head_dim = pool_NLKGPD.shape
        self._runs_RX = pool_NLKGPD.view(-1, self._block_size * self._head_dim)
        self._places_RD = pool_NLKGPD.view(-1, self._head_dim)
        self._dtype = pool_NLKGPD.dtype
        runs_T2G = self._run_rows(batch.blocks_T)
        self._written_rows = (runs_T2G * self._block_size + batch.places_T[:, None, None]).flatten()
        self._most_gathered = _most_gathered(pool_NLKGPD)
        plans = {window: self._plan(batch, window) for window in set(windows)}
        self._plans = [plans[window] for window in windows]

    def write(self, layer: int, kv_TXD: torch.Tensor) -> None:
        """Stores this step's KV of one layer: for each token all its key heads, then all its value heads.

        Mutates: the pool.
        """
        layer_rows_RD = self._places_RD[layer * 2 * self._num_kv_heads * self._block_size :]
        layer_rows_RD.index_copy_(0, self._written_rows, kv_TXD.reshape(-1, self._head_dim))

    def attend(self, layer: int, q_THD: torch.Tensor) -> torch.Tensor:
        """What each token's queries find in the KV of its sequence up to itself: `[T, H, D]`."""
        plan = self._plans[layer]
        layer_runs_RX = self._runs_RX[layer * 2 * self._num_kv_heads :]
        answers = []
        for decodes in plan.decodes:
            q_BHD = q_THD[decodes.group.first : decodes.group.end]
            answers.append(self._decode(decodes, q_BHD, layer_runs_RX))
        for prompt in plan.prompts:
            span = prompt.span
            q_SHD = q_THD[span.first : span.first + span.num_tokens]
            answers.append(self._prefill(prompt, q_SHD, layer_runs_RX))
        return answers[0] if len(answers) == 1 else torch.cat(answers)

    def _decode(self, plan: _Decodes, q_BHD: torch.Tensor, layer_runs_RX: torch.Tensor) -> torch.Tensor:
        num_rows, num_heads, head_dim = q_BHD.shape
        gathered_RX = layer_runs_RX.index_select(0, plan.rows)
        kv_2BGSD = gathered_RX.view(2, num_rows, self._num_kv_heads, -1, head_dim)
        if plan.stale_rows is None:
            kv_2BGSD = kv_2BGSD[:, :, :, plan.group.max_hidden : plan.group.max_context]
        else:
            gathered_RX.view(-1, head_dim).index_fill_(0, plan.stale_rows, 0.0)
        # The query heads that share a KV head stand where a longer query would have its tokens.
        q_BGRD = q_BHD.view(num_rows, self._num_kv_heads, -1, head_dim)
        answer = scaled_dot_product_attention(q_BGRD, kv_2BGSD[0], kv_2BGSD[1], attn_mask=plan.mask_B11S)
        return answer.reshape(num_rows, num_heads, head_dim)

    def _prefill(self, plan: _Prompt, q_SHD: torch.Tensor, layer_runs_RX: torch.Tensor) -> torch.Tensor:
        gathered_RX = layer_runs_RX.index_select(0, plan.rows)
        kv_2GSD = gathered_RX.view(2, self._num_kv_heads, -1, self._head_dim)[:, :, : plan.span.context]
        answer = scaled_dot_product_attention(
            q_SHD.transpose(0, 1)[None],
            kv_2GSD[0][None],
            kv_2GSD[1][None],
            attn_mask=plan.mask_TS,
            is_causal=plan.mask_TS is None,
            enable_gqa=True,
        )
        return answer[0].transpose(0, 1)

    def _plan(self, batch: ForwardBatch, window: int | None) -> _Plan:
        reach = plan_reach(batch, window, self._most_gathered)
        return _Plan(
            decodes=[self._plan_decodes(group) for group in reach.decodes],
            prompts=[self._plan_prompt(span) for span in reach.spans],
        )

    def _plan_decodes(self, group: DecodeGroup) -> _Decodes:
        num_rows, width = group.block_table_BW.shape
        runs_2BGW = self._run_rows(group.block_table_BW).permute(2, 0, 3, 1)
        if num_rows == 1:
            return _Decodes(group, runs_2BGW.flatten(), None, None)
        num_places = width * self._block_size
        places_S = torch.arange(num_places, device=group.context_B.device)
        is_hidden_BS = places_S >= group.context_B[:, None]
        if group.hidden_B is not None:
            is_hidden_BS |= places_S < group.hidden_B[:, None]
        mask_BS = self._mask(is_hidden_BS)
        sides_2G = self._sides(group.stale_Y.device)[..., None]
        side_2G, head_2G = sides_2G // self._num_kv_heads, sides_2G % self._num_kv_heads
        row_Y, place_Y = group.stale_Y // num_places, group.stale_Y % num_places
        stale_2GY = ((side_2G * num_rows + row_Y) * self._num_kv_heads + head_2G) * num_places + place_Y
        return _Decodes(group, runs_2BGW.flatten(), mask_BS[:, None, None], stale_2GY.flatten())

    def _plan_prompt(self, span: Span) -> _Prompt:
        runs_2GW = self._run_rows(span.block_table_W).permute(1, 2, 0)
        has_window = span.window is not None and span.window < span.context
        if span.num_tokens == span.context and not has_window:
            return _Prompt(span, runs_2GW.flatten(), None)
        places_S = torch.arange(span.context, device=span.block_table_W.device)
        own_places_T1 = places_S[-span.num_tokens :, None]
        is_hidden_TS = places_S > own_places_T1
        if span.window is not None:
            is_hidden_TS |= places_S <= own_places_T1 - span.window
        return _Prompt(span, runs_2GW.flatten(), self._mask(is_hidden_TS))

    def _run_rows(self, blocks_X: torch.Tensor) -> torch.Tensor:
        """Rows of layer 0 in the pool seen as runs of one block and head: `[*X, 2, G]`."""
        sides_2G = self._sides(blocks_X.device)
        return blocks_X[..., None, None] * (self._num_layers * 2 * self._num_kv_heads) + sides_2G

    def _sides(self, device: torch.device) -> torch.Tensor:
        return torch.arange(2 * self._num_kv_heads, device=device).view(2, self._num_kv_heads)

    def _mask(self, is_hidden: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(is_hidden.shape, dtype=self._dtype, device=is_hidden.device)
        return mask.masked_fill_(is_hidden, -torch.inf)


def _most_gathered(pool_NLKGPD: torch.Tensor) -> int | None:
    """How many tokens of a layer one gather may copy on a CPU; None, any, on other devices."""
    if pool_NLKGPD.device.type != "cpu":
        return None
    _, _, sides, num_kv_heads, _, head_dim = pool_NLKGPD.shape
    return _GATHERED_BYTES // (sides * num_kv_heads * head_dim * pool_NLKGPD.itemsize)
