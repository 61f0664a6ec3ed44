"""What a torch runner of a tiny model is told, in every test of one."""

from workers.engine.torch_settings import PoolSize, TorchSettings

TINY_TORCH = TorchSettings(
    device="cpu",
    dtype="float32",
    weights="full",
    num_threads=1,
    block_size=8,
    pool=PoolSize(num_blocks=24),
    push_kib=1,
)
