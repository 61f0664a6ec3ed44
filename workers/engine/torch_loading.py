"""How a torch runner comes to be: device, weights, and the memory that its pool lies in."""

import logging
import mmap
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from proto.errors import InvalidSetting
from workers.engine.host_memory import HostMemory, read_host_memory
from workers.engine.torch_runner import TorchRunner
from workers.engine.torch_settings import TorchPlan, TorchSettings
from workers.model.config import ModelConfig, read_config
from workers.model.decoder import Decoder
from workers.model.dtypes import choose_dtype, dtype_name
from workers.model.int8_projection import choose_quantize
from workers.model.weights import load_weights

log = logging.getLogger(__name__)

_PAGE_BYTES = 2 * 2**20


def load_torch_runner(folder: Path, settings: TorchSettings) -> TorchRunner:
    """Loads the model in `folder`, allocates its pool, and warms both up.

    Raises: InvalidSetting for a model, device, dtype or size that cannot be used.
    """
    torch.set_num_threads(settings.num_threads)
    device = _find_device(settings.device)
    config = read_config(folder)
    dtype = choose_dtype(settings.dtype, config.dtype, device)
    quantize = choose_quantize(settings.weights, device)
    decoder = Decoder(config, load_weights(folder, config, device, dtype, quantize))
    plan = _plan(settings, config, device, dtype)
    log.info("the runner is settled", extra=msgspec.structs.asdict(plan))
    pool_NLKGPD = allocate_pool(config, plan.num_blocks, settings.block_size, device, dtype)
    runner = TorchRunner(decoder, pool_NLKGPD, plan.layers_per_push)
    runner.warm_up()
    return runner


def allocate_pool(
    config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """A zeroed pool that begins on a page, since memory is registered for transfer by pages.

    Raises: InvalidSetting when there is no memory for it.
    """
    shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    try:
        memory = _allocate(num_bytes + _PAGE_BYTES, device)
    except (OSError, OverflowError, RuntimeError) as error:
        raise _too_large(num_bytes, str(error)) from error
    start = -memory.data_ptr() % _PAGE_BYTES
    return memory[start : start + num_bytes].view(dtype).view(shape)


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    """On a CPU in huge pages where the system has them: a copy to another process pins each page anew, which
    at 4 KiB a page takes longer than the copying."""
    if device.type != "cpu":
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    region = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=torch.uint8)


def _plan(
    settings: TorchSettings, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> TorchPlan:
    memory = _read_memory(device)
    layer_bytes = 2 * config.num_kv_heads * settings.block_size * config.head_dim * dtype.itemsize
    block_bytes = config.num_layers * layer_bytes
    num_blocks = settings.pool.count_blocks(block_bytes, memory.free_bytes)
    if (
        num_blocks * block_bytes > memory.total_bytes
    ):  # the system would grant it, and kill us when it is used
        raise _too_large(num_blocks * block_bytes, f"there are {memory.total_bytes >> 20} MiB in all")
    return TorchPlan(
        device=str(device),
        dtype=dtype_name(dtype),
        weights=settings.weights,
        num_threads=settings.num_threads,
        free_bytes=memory.free_bytes,
        num_blocks=num_blocks,
        pool_bytes=num_blocks * block_bytes,
        layers_per_push=min(config.num_layers, -(-settings.push_kib * 1024 // layer_bytes)),
    )


def _read_memory(device: torch.device) -> HostMemory:
    """Of the device that the pool is to lie on, with the weights in place."""
    if device.type == "cpu":
        return read_host_memory()
    free_bytes, total_bytes = torch.accelerator.get_memory_info(device)
    return HostMemory(total_bytes, free_bytes)


def _find_device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device  # the name alone does not show whether the device is there
    except (RuntimeError, AssertionError) as error:
        raise InvalidSetting(setting="device", reason=f"{name!r} cannot be used: {error}") from error


def _too_large(pool_bytes: int, why: str) -> InvalidSetting:
    reason = f"there is no memory for a pool of {pool_bytes >> 20} MiB: {why}"
    return InvalidSetting(setting="worker.num_blocks", reason=reason)
