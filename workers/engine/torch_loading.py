"""How a torch runner comes to be: device, weights, and how large its pool may be."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from proto.errors import InvalidSetting
from proto.layout import PoolLayout
from workers.engine.host_memory import HostMemory, read_host_memory
from workers.engine.paged_decoder import Forward, PagedDecoder
from workers.engine.pool_tensor import allocate_pool, describe_pool, too_large
from workers.engine.torch_runner import TorchRunner
from workers.engine.torch_settings import PoolSize, TorchPlan, TorchSettings
from workers.model.config import ModelConfig, read_config
from workers.model.decoder import Decoder
from workers.model.dtypes import choose_dtype, dtype_name
from workers.model.int8_projection import choose_quantize
from workers.model.share import Share, whole_of
from workers.model.weights import Weights, load_weights

log = logging.getLogger(__name__)


class RankMemory(NamedTuple):
    """What a rank needs of its device for each block, and what there is with the weights in place."""

    device: str
    block_bytes: int
    memory: HostMemory


@dataclass(frozen=True, slots=True)
class LoadedShare:
    """A share of a model on its device. `config` is narrowed to it."""

    config: ModelConfig
    share: Share
    weights: Weights
    device: torch.device
    dtype: torch.dtype
    settings: TorchSettings

    @property
    def block_bytes(self) -> int:
        numbers = self.config.num_kv_heads * self.settings.block_size * self.config.head_dim
        return 2 * self.config.num_layers * numbers * self.dtype.itemsize

    def measure(self) -> RankMemory:
        memory = _read_memory(self.device)
        log.info("the weights are loaded", extra={"device": str(self.device), **memory._asdict()})
        return RankMemory(str(self.device), self.block_bytes, memory)

    def allocate(self, num_blocks: int) -> torch.Tensor:
        """
        Raises:
            InvalidSetting: there is no memory for so many.
        """
        return allocate_pool(self.config, num_blocks, self.settings.block_size, self.device, self.dtype)

    def describe(self, pool_NIGLKPD: torch.Tensor) -> PoolLayout:
        return describe_pool(pool_NIGLKPD, self.share.layers.first, self.share.kv_heads.first)

    def page(self, decoder: Forward, pool_NIGLKPD: torch.Tensor) -> PagedDecoder:
        """`decoder`, which computes with these weights, over the pool."""
        layout = self.describe(pool_NIGLKPD)
        per_push = min(self.config.num_layers, -(-self.settings.push_kib * 1024 // layout.layer_bytes))
        self._say_plan(layout.num_blocks, layout.pool_bytes, per_push)
        return PagedDecoder(decoder, pool_NIGLKPD, layout, per_push)

    def _say_plan(self, num_blocks: int, pool_bytes: int, layers_per_push: int) -> None:
        plan = TorchPlan(
            device=str(self.device),
            dtype=dtype_name(self.dtype),
            weights=self.settings.weights,
            num_threads=self.settings.num_threads,
            num_blocks=num_blocks,
            pool_bytes=pool_bytes,
            layers_per_push=layers_per_push,
        )
        log.info("the runner is settled", extra=msgspec.structs.asdict(plan))


def load_torch_runner(folder: Path, settings: TorchSettings) -> TorchRunner:
    """Loads the model in `folder`, allocates its pool, and warms both up.

    Raises: InvalidSetting for a model, device, dtype or size that cannot be used.
    """
    config = read_config(folder)
    loaded = load_share(folder, config, whole_of(config), settings)
    num_blocks = plan_blocks(settings.pool, [loaded.measure()])
    decoder = Decoder(loaded.config, loaded.weights)
    runner = TorchRunner(loaded.page(decoder, loaded.allocate(num_blocks)))
    runner.warm_up()
    return runner


def load_share(folder: Path, config: ModelConfig, share: Share, settings: TorchSettings) -> LoadedShare:
    """
    Raises:
        InvalidSetting: a model, device or dtype that cannot be used.
    """
    torch.set_num_threads(settings.num_threads)
    device = _find_device(settings.device)
    dtype = choose_dtype(settings.dtype, config.dtype, device)
    quantize = choose_quantize(settings.weights, device)
    weights = load_weights(folder, config, device, dtype, quantize, share)
    return LoadedShare(share.narrow(config), share, weights, device, dtype, settings)


def plan_blocks(pool: PoolSize, ranks: Sequence[RankMemory]) -> int:
    """How many blocks the pool of each rank has: as many as the least device holds for all that are on it.

    Raises:
        InvalidSetting: more than there is memory for.
    """
    on_device: dict[str, list[RankMemory]] = {}
    for rank in ranks:
        on_device.setdefault(rank.device, []).append(rank)
    needs = [_add_up(group) for group in on_device.values()]
    num_blocks = min(pool.count_blocks(need.block_bytes, need.memory.free_bytes) for need in needs)
    for need in needs:
        pool_bytes, total_bytes = num_blocks * need.block_bytes, need.memory.total_bytes
        if pool_bytes > total_bytes:  # the system would grant it, and kill us when it is used
            raise too_large(pool_bytes, f"there are {total_bytes >> 20} MiB in all")
    return num_blocks


def _add_up(ranks: list[RankMemory]) -> RankMemory:
    """Of ranks on one device: who measured last saw the weights of all."""
    last = min(ranks, key=lambda rank: rank.memory.free_bytes)
    return last._replace(block_bytes=sum(rank.block_bytes for rank in ranks))


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
