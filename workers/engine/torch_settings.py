"""What an operator may say about a torch runner, and what a machine makes of it; torch-free."""

from typing import Literal

import msgspec

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
WeightsName = Literal["full", "int8"]


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """How large a pool shall be: the first of these that is not 0 says so."""

    num_blocks: int = 0
    share: float = 0.0
    mib: int = 0

    def count_blocks(self, block_bytes: int, free_bytes: int) -> int:
        """At least one. Units: `free_bytes` is what is left for the pool."""
        if self.num_blocks:
            return self.num_blocks
        pool_bytes = int(self.share * free_bytes) if self.share else self.mib * 2**20
        return max(1, pool_bytes // block_bytes)


class TorchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The same on every machine.

    Units: `push_kib` is the least of a head in a tile that leaves in one piece while other layers compute.
    """

    device: str
    dtype: DtypeName
    weights: WeightsName
    num_threads: int
    block_size: int
    pool: PoolSize
    push_kib: int


class TorchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What they come to for a rank on this machine, settled once the weights are loaded."""

    device: str
    dtype: str
    weights: str
    num_threads: int
    num_blocks: int
    pool_bytes: int
    layers_per_push: int
