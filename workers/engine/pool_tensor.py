"""The tensor that a pool is: the memory it lies in, and how others see it."""

import torch

from proto.errors import InvalidSetting
from proto.layout import PoolLayout
from workers.huge_region import PAGE_BYTES
from workers.model.config import ModelConfig
from workers.model.dtypes import dtype_name
from workers.model.huge_pages import map_pages


def allocate_pool(
    config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """A zeroed pool that begins on a page, since memory is registered for transfer by pages.

    Raises: InvalidSetting when there is no memory for it.
    """
    shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
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


def describe_pool(pool_NLKGPD: torch.Tensor, first_layer: int = 0, first_head: int = 0) -> PoolLayout:
    """Its layers and heads are the model's from these on."""
    num_blocks, num_layers, _, num_heads, block_size, head_dim = pool_NLKGPD.shape
    return PoolLayout(
        address=pool_NLKGPD.data_ptr(),
        num_blocks=num_blocks,
        block_size=block_size,
        first_layer=first_layer,
        num_layers=num_layers,
        first_head=first_head,
        num_heads=num_heads,
        head_dim=head_dim,
        dtype=dtype_name(pool_NLKGPD.dtype),
        item_bytes=pool_NLKGPD.itemsize,
        device=str(pool_NLKGPD.device),
    )


def too_large(pool_bytes: int, why: str) -> InvalidSetting:
    reason = f"there is no memory for a pool of {pool_bytes >> 20} MiB: {why}"
    return InvalidSetting(setting="worker.num_blocks", reason=reason)
