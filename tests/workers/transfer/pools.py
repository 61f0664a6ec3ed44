"""Pools in plain memory, filled so that every byte says where it belongs."""

import ctypes
import mmap
from collections.abc import Iterator

from proto.layout import PoolLayout

BLOCK_SIZE = 16
NUM_LAYERS = 4


class MemoryPool:
    """A pool of `num_blocks` blocks of four layers; the memory lives as long as this object."""

    def __init__(self, num_blocks: int = 8, num_heads: int = 2, head_dim: int = 8) -> None:
        layer_bytes = 2 * num_heads * BLOCK_SIZE * head_dim * 4
        self._memory = mmap.mmap(-1, num_blocks * NUM_LAYERS * layer_bytes)
        self._held = ctypes.c_char.from_buffer(self._memory)
        self.layout = PoolLayout(
            address=ctypes.addressof(self._held),
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            first_layer=0,
            num_layers=NUM_LAYERS,
            first_head=0,
            num_heads=num_heads,
            head_dim=head_dim,
            dtype="float32",
            item_bytes=4,
        )

    def fill(self, block: int, value: int) -> None:
        """Layer `l` of the block gets the bytes `value + l`."""
        for layer in range(NUM_LAYERS):
            for start, end in self._pieces(block, layer):
                self._memory[start:end] = bytes([value + layer]) * (end - start)

    def clear(self, block: int) -> None:
        start = block * self.layout.block_bytes
        self._memory[start : start + self.layout.block_bytes] = bytes(self.layout.block_bytes)

    def layers(self, block: int) -> list[int]:
        """The one value in each layer's bytes; -1 where they differ among themselves."""
        found = []
        for layer in range(NUM_LAYERS):
            values = set().union(*(self._memory[start:end] for start, end in self._pieces(block, layer)))
            found.append(values.pop() if len(values) == 1 else -1)
        return found

    def _pieces(self, block: int, layer: int) -> Iterator[tuple[int, int]]:
        """Where the layer of each head begins and ends."""
        for head in range(self.layout.num_heads):
            start = block * self.layout.block_bytes + head * self.layout.head_bytes
            start += layer * self.layout.layer_bytes
            yield start, start + self.layout.layer_bytes
