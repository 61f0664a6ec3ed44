"""The runner that computes: model, KV pool and sampler on one torch device."""

import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from proto.errors import InvalidSetting
from workers.engine.logit_reading import read_logits
from workers.engine.runner import OnLayers, RowResult, SampleParams, ScheduledSequence, StepBatch
from workers.model.batch import Chunk, build_batch
from workers.model.config import ModelConfig, read_config
from workers.model.decoder import Decoder
from workers.model.weights import load_weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_PAGE_BYTES = 2 * 2**20


class TorchRunner:
    """A `Runner` over a decoder and the pool that holds its KV."""

    def __init__(self, decoder: Decoder, pool_NLKGPD: torch.Tensor, layers_per_push: int) -> None:
        self._decoder = decoder
        self._layers_per_push = layers_per_push
        self.config = decoder.config
        self.pool_NLKGPD = pool_NLKGPD
        self.num_blocks, self.num_layers, _, self.num_kv_heads, self.block_size, self.head_dim = (
            pool_NLKGPD.shape
        )
        self.itemsize = pool_NLKGPD.itemsize
        self.dtype = str(pool_NLKGPD.dtype).removeprefix("torch.")
        self.pool_address = pool_NLKGPD.data_ptr()
        self.pool_bytes = pool_NLKGPD.nbytes
        self.pool_device = str(pool_NLKGPD.device)

    def run(self, batch: StepBatch, on_layers: OnLayers | None) -> list[RowResult]:
        if not batch.rows:
            return []
        chunks = [Chunk(row.tokens, row.start, row.blocks, row.num_logits) for row in batch.rows]
        forward_batch = build_batch(chunks, self.block_size, self.pool_NLKGPD.device)
        on_layer = None if on_layers is None else self._in_groups(on_layers)
        logits_BV = self._decoder.forward(forward_batch, self.pool_NLKGPD, on_layer)
        results = read_logits(logits_BV, batch.rows)
        self._wait_for_device()  # whoever reads the pool next may do so from outside torch's queue
        return results

    def warm_up(self) -> None:
        """Runs one prompt and one step of two sequences, so that no request pays for first uses.

        Mutates: the pool, whose first and last block it leaves zeroed: call it before anything is in it.
        """
        greedy = SampleParams()
        prompt = ScheduledSequence(tokens=[0] * self.block_size, start=0, blocks=[0], sample=greedy, key=0)
        last = ScheduledSequence(tokens=[0], start=self.block_size - 1, blocks=[0], sample=greedy, key=0)
        end = self.num_blocks - 1
        drawn = ScheduledSequence(tokens=[0], start=0, blocks=[end], sample=SampleParams(1.0, 8, 0.9), key=1)
        self.run(StepBatch([prompt]), None)
        self.run(StepBatch([last]), None)
        self.run(StepBatch([last, drawn]), None)
        self.pool_NLKGPD[[0, end]] = 0.0

    def _in_groups(self, on_layers: OnLayers) -> Callable[[int], None]:
        def on_layer(layer: int) -> None:
            num_done = layer + 1
            if num_done % self._layers_per_push and num_done < self.num_layers:
                return
            first = layer - layer % self._layers_per_push
            self._wait_for_device()
            on_layers(first, num_done - first)

        return on_layer

    def _wait_for_device(self) -> None:
        device = self.pool_NLKGPD.device
        if device.type != "cpu":
            torch.accelerator.current_stream(device).synchronize()


def load_torch_runner(
    folder: Path,
    *,
    device: str,
    dtype: str,
    block_size: int,
    num_blocks: int,
    layers_per_push: int,
    num_threads: int,
) -> TorchRunner:
    """Loads the model in `folder`, allocates its pool, and warms both up.

    Raises: InvalidSetting for a model, device or dtype that cannot be used.
    """
    torch.set_num_threads(num_threads)
    found_device, found_dtype = _device(device), _dtype(dtype)
    config = read_config(folder)
    decoder = Decoder(config, load_weights(folder, config, found_device, found_dtype))
    pool_NLKGPD = allocate_pool(config, num_blocks, block_size, found_device, found_dtype)
    runner = TorchRunner(decoder, pool_NLKGPD, layers_per_push)
    runner.warm_up()
    return runner


def allocate_pool(
    config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """A zeroed pool that begins on a page, since memory is registered for transfer by pages."""
    shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    memory = _allocate(num_bytes + _PAGE_BYTES, device)
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


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device  # the name alone does not show whether the device is there
    except (RuntimeError, AssertionError) as error:
        raise InvalidSetting(setting="device", reason=f"{name!r} cannot be used: {error}") from error


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise InvalidSetting(setting="dtype", reason=f"{name!r} is none of {', '.join(_DTYPES)}")
    return _DTYPES[name]
