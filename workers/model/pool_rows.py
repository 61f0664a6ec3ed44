"""The pool as rows, so that KV is read and written by their numbers.

The pool `[N, L, 2, G, P, D]` is seen as rows of D, the places, and of P x D, the runs: what a block holds of
one head. Row numbers are worked out once a step, for layer 0. A view begins where a layer's keys do, or its
values, so that the same numbers serve every layer and both sides.
"""

import torch


class PoolRows:
    """Views of `pool_NLKGPD`, which is contiguous.

    `keys_DR`, turned, and `values_RD` are by layer: the places in every block, and what lies between them, of
    which there are `num_seen`.
    """

    def __init__(self, pool_NLKGPD: torch.Tensor) -> None:
        num_blocks, self._num_layers, _, self.num_kv_heads, self.block_size, self.head_dim = pool_NLKGPD.shape
        self.device = pool_NLKGPD.device
        self.dtype = pool_NLKGPD.dtype
        self._runs_RX = pool_NLKGPD.view(-1, self.block_size * self.head_dim)
        side_places = self.num_kv_heads * self.block_size
        self._block_places = self._num_layers * 2 * side_places
        self.num_seen = (num_blocks - 1) * self._block_places + side_places
        places_RD = pool_NLKGPD.view(-1, self.head_dim)
        firsts = range(0, self._block_places, 2 * side_places)
        self._written_RD = [places_RD[first:] for first in firsts]
        self.keys_DR = [places_RD.narrow(0, first, self.num_seen).t() for first in firsts]
        self.values_RD = [places_RD.narrow(0, first + side_places, self.num_seen) for first in firsts]

    def runs(self, layer: int) -> torch.Tensor:
        """From this layer's first on."""
        return self._runs_RX[layer * 2 * self.num_kv_heads :]

    def store(self, layer: int, rows_X: torch.Tensor, kv_XD: torch.Tensor) -> None:
        """Writes the rows that `kv_rows` has numbered.

        Mutates: the pool.
        """
        self._written_RD[layer].index_copy_(0, rows_X, kv_XD)

    def kv_rows(self, blocks_X: torch.Tensor, places_X: torch.Tensor) -> torch.Tensor:
        """Of one place in a block all key heads, then all value heads: `[*X, 2 G]`."""
        return self._place_rows(blocks_X, places_X, 2 * self.num_kv_heads)

    def key_rows(self, blocks_X: torch.Tensor, places_X: torch.Tensor) -> torch.Tensor:
        """Of one place in a block, the numbers of its heads in `keys_DR` and in `values_RD`: `[*X, G]`."""
        return self._place_rows(blocks_X, places_X, self.num_kv_heads)

    def run_rows(self, blocks_X: torch.Tensor) -> torch.Tensor:
        """Of whole blocks: `[*X, 2, G]`."""
        heads_Y = torch.arange(2 * self.num_kv_heads, device=blocks_X.device)
        rows_XY = blocks_X[..., None] * (self._num_layers * 2 * self.num_kv_heads) + heads_Y
        return rows_XY.view(*blocks_X.shape, 2, self.num_kv_heads)

    def _place_rows(self, blocks_X: torch.Tensor, places_X: torch.Tensor, num_heads: int) -> torch.Tensor:
        heads_Y = torch.arange(num_heads, device=blocks_X.device)
        return (blocks_X * self._block_places + places_X)[..., None] + heads_Y * self.block_size
