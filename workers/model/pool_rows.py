"""The pool as rows, so that KV is read and written by their numbers.

The pool `[N, I, G, L, 2, P, D]`, of blocks of I tiles, is seen as rows of D, the places, and of P x D, the
runs: what a tile holds of one head. Row numbers are worked out once a step, for layer 0. A view begins where
a layer's keys do, or its values, so that the same numbers serve every layer and both sides.
"""

import torch


class PoolRows:
    """Views of `pool_NIGLKPD`, which is contiguous.

    `keys_DR`, turned, and `values_RD` are by layer: its places in every tile, and what lies between them, of
    which there are `num_seen`.
    """

    def __init__(self, pool_NIGLKPD: torch.Tensor) -> None:
        _, self._num_tiles, self.num_kv_heads, num_layers, _, self._tile_size, self.head_dim = (
            pool_NIGLKPD.shape
        )
        self.block_size = self._num_tiles * self._tile_size
        self.device = pool_NIGLKPD.device
        self.dtype = pool_NIGLKPD.dtype
        self._runs_RX = pool_NIGLKPD.view(-1, self._tile_size * self.head_dim)
        self._head_runs = num_layers * 2
        places_RD = pool_NIGLKPD.view(-1, self.head_dim)
        firsts = range(0, self._head_runs * self._tile_size, 2 * self._tile_size)
        self.num_seen = len(places_RD) - (self._head_runs - 1) * self._tile_size
        self._written_RD = [places_RD[first:] for first in firsts]
        self.keys_DR = [places_RD.narrow(0, first, self.num_seen).t() for first in firsts]
        self.values_RD = [places_RD.narrow(0, first + self._tile_size, self.num_seen) for first in firsts]

    def runs(self, layer: int) -> torch.Tensor:
        """From this layer's first on."""
        return self._runs_RX[layer * 2 :]

    def store(self, layer: int, rows_X: torch.Tensor, kv_XD: torch.Tensor) -> None:
        """Writes the rows that `kv_rows` has numbered.

        Mutates: the pool.
        """
        self._written_RD[layer].index_copy_(0, rows_X, kv_XD)

    def kv_rows(self, blocks_X: torch.Tensor, places_X: torch.Tensor) -> torch.Tensor:
        """Of one place in a block all key heads, then all value heads: `[*X, 2 G]`."""
        keys_XG = self.key_rows(blocks_X, places_X)
        return torch.cat((keys_XG, keys_XG + self._tile_size), dim=-1)

    def key_rows(self, blocks_X: torch.Tensor, places_X: torch.Tensor) -> torch.Tensor:
        """Of one place in a block, the numbers of its heads in `keys_DR` and in `values_RD`: `[*X, G]`."""
        tiles_X = blocks_X * self._num_tiles + places_X // self._tile_size
        return self._key_runs(tiles_X) * self._tile_size + (places_X % self._tile_size)[..., None]

    def run_rows(self, blocks_XW: torch.Tensor) -> torch.Tensor:
        """Of the tiles of whole blocks, I W of them: `[*X, I W, 2, G]`."""
        tiles_I = torch.arange(self._num_tiles, device=blocks_XW.device)
        tiles_XY = (blocks_XW[..., None] * self._num_tiles + tiles_I).flatten(-2)
        keys_XYG = self._key_runs(tiles_XY)
        return torch.stack((keys_XYG, keys_XYG + 1), dim=-2)

    def _key_runs(self, tiles_X: torch.Tensor) -> torch.Tensor:
        """Of each tile the runs of its heads' keys: `[*X, G]`."""
        heads_G = torch.arange(self.num_kv_heads, device=tiles_X.device)
        return (tiles_X[..., None] * self.num_kv_heads + heads_G) * self._head_runs
