"""The runner that a worker's settings ask for, and how its pool looks to others."""

from proto.cards import KvClass
from proto.layout import PoolLayout
from services.models.folder import ModelFolder
from workers.engine.engine_settings import EngineSettings
from workers.engine.host_memory import read_host_memory
from workers.engine.runner import Runner
from workers.engine.simulated_runner import SimulatedRunner
from workers.engine.torch_settings import PoolSize, TorchSettings
from workers.settings import WorkerSettings


def load_runner(settings: WorkerSettings, folder: ModelFolder) -> tuple[Runner, str]:
    """The runner and the digest that names its weights. Takes seconds: for a thread.

    Raises:
        InvalidSetting: model, device or dtype cannot be used.
    """
    if settings.engine == "simulated":
        return _simulated(settings), simulated_digest(folder)
    # Only here: a simulated worker needs no torch, and starts without it.
    from workers.engine.torch_loading import load_torch_runner
    from workers.model.weights import weights_digest

    runner = load_torch_runner(folder.path, torch_settings(settings))
    return runner, weights_digest(folder.path, settings.weights)


def torch_settings(settings: WorkerSettings) -> TorchSettings:
    return TorchSettings(
        device=settings.device,
        dtype=settings.dtype,
        weights=settings.weights,
        num_threads=settings.threads,
        block_size=settings.block_size,
        pool=pool_size(settings),
        push_kib=settings.push_kib,
    )


def pool_size(settings: WorkerSettings) -> PoolSize:
    return PoolSize(num_blocks=settings.num_blocks, share=settings.pool_share, mib=settings.pool_mib)


def simulated_digest(folder: ModelFolder) -> str:
    """What stands for the digest of weights that there are none of: one text, one simulated model."""
    return f"simulated-{folder.tokenizer_digest[:16]}"


def _simulated(settings: WorkerSettings) -> SimulatedRunner:
    """Its pool takes no memory: a share of what there is says how large it is to seem."""
    model = settings.simulated
    block_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * settings.block_size * 4
    num_blocks = pool_size(settings).count_blocks(block_bytes, read_host_memory().free_bytes)
    return SimulatedRunner(model, num_blocks, settings.block_size, settings.name)


def engine_settings(settings: WorkerSettings, runner: Runner, folder: ModelFolder) -> EngineSettings:
    return EngineSettings(
        num_blocks=runner.num_blocks,
        context_tokens=folder.context_tokens,
        block_size=runner.block_size,
        vocab_size=folder.vocab_size,
        step_tokens=settings.step_tokens,
        prefill_step_tokens=settings.prefill_step_tokens,
        max_sequences=settings.max_sequences,
        max_waiting=settings.max_waiting,
        step_stall_s=settings.step_stall_s,
    )


def pool_layout(runner: Runner) -> PoolLayout:
    """The whole pool of a worker of one rank: all layers, all heads."""
    return PoolLayout(
        address=runner.pool_address,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        first_layer=0,
        num_layers=runner.num_layers,
        first_head=0,
        num_heads=runner.num_kv_heads,
        head_dim=runner.head_dim,
        dtype=runner.dtype,
        item_bytes=runner.itemsize,
        device=runner.pool_device,
    )


def kv_class(runner: Runner, weights_digest: str) -> KvClass:
    return KvClass(weights_digest, runner.dtype, runner.block_size)
