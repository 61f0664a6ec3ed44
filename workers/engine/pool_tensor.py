"""The tensor that a pool is: the memory it lies in, and how others see it."""

import torch

from proto.errors import InvalidSetting
from proto.layout import PoolLayout, tile_places
from workers.huge_region import PAGE_BYTES
from workers.model.config import ModelConfig
from workers.model.dtypes import dtype_name
from workers.model.huge_pages import map_pages


def allocate_pool(
    config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """A zeroed pool that begins on a page, since memory is registered for transfer by pages: `[N, I, G, L, 2,
    P, D]`, of blocks of I tiles; see `proto.layout`.

    Raises: InvalidSetting when there is no memory for it.
    """
    num_places = tile_places(block_size)
    of_block = (block_size // num_places, config.num_kv_heads, config.num_layers, 2, num_places)
    shape = (num_blocks, *of_block, config.head_dim)
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    try:
        memory = _allocate(num_bytes, device)
    except (OSError, OverflowError, RuntimeError) as error:
        raise too_large(num_bytes, str(error)) from error
    return memory.view(dtype).view(shape)


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return map_pages(num_bytes)
    memory = torch.zeros(num_bytes + PAGE_BYTES, dtype=torch.uint8, device=device)
    start = -memory.data_ptr() % PAGE_BYTES
    return memory[start : start + num_bytes]


def describe_pool(pool_NIGLKPD: torch.Tensor, first_layer: int = 0, first_head: int = 0) -> PoolLayout:
    """Its layers and heads are the model's from these on."""
    num_blocks, num_tiles, num_heads, num_layers, _, num_places, head_dim = pool_NIGLKPD.shape
    return PoolLayout(
        address=pool_NIGLKPD.data_ptr(),
        num_blocks=num_blocks,
        block_size=num_tiles * num_places,
        first_layer=first_layer,
        num_layers=num_layers,
        first_head=first_head,
        num_heads=num_heads,
        head_dim=head_dim,
        dtype=dtype_name(pool_NIGLKPD.dtype),
        item_bytes=pool_NIGLKPD.itemsize,
        device=str(pool_NIGLKPD.device),
    )


def too_large(pool_bytes: int, why: str) -> InvalidSetting:
    reason = f"there is no memory for a pool of {pool_bytes >> 20} MiB: {why}"
    return InvalidSetting(setting="worker.num_blocks", reason=reason)
