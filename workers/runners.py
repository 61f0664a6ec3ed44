"""The runner that a worker's settings ask for, and what the engine is told of it."""

from proto.cards import KvClass
from proto.errors import InvalidSetting
from services.models.folder import ModelFolder
from workers.engine.engine_settings import EngineSettings
from workers.engine.host_memory import read_host_memory
from workers.engine.ngram_drafter import NgramDrafter
from workers.engine.runner import Runner
from workers.engine.simulated_model import simulated_pool
from workers.engine.simulated_runner import SimulatedRunner
from workers.engine.speculation import Drafting
from workers.engine.torch_settings import PoolSize, TorchSettings
from workers.ranks.crew import Crew
from workers.ranks.grid import Grid
from workers.settings import WorkerSettings


def grid_of(settings: WorkerSettings) -> Grid:
    """
    Raises:
        InvalidSetting: what is simulated has no ranks, or a silent one would be borne for too long.
    """
    grid = Grid(settings.tp, settings.pp)
    if grid.num_ranks == 1:
        return grid
    if settings.engine == "simulated":
        raise InvalidSetting(setting="worker.tp", reason="a simulated worker is of one rank: tp and pp are 1")
    lease_s = settings.directory.lease_ttl_s
    if settings.rank_silent_s > lease_s / 2:  # in the rest it is missed, and what it serves goes elsewhere
        reason = (
            f"{settings.rank_silent_s:g} is over half of directory.lease_ttl_s, which is {lease_s}: "
            "a worker with a silent rank would be listed for longer than a lease"
        )
        raise InvalidSetting(setting="worker.rank_silent_s", reason=reason)
    return grid


def load_runner(settings: WorkerSettings, folder: ModelFolder, crew: Crew) -> tuple[Runner, str]:
    """The runner and the digest that names its weights. Takes seconds: for a thread.

    Raises:
        InvalidSetting: model, device or dtype cannot be used.
        InternalFault: a rank of `crew` has ended.
    """
    if settings.engine == "simulated":
        return _simulated(settings), simulated_digest(folder)
    # Only here: a simulated worker needs no torch, and starts without it.
    from workers.model.weights import weights_digest

    return _load_torch(settings, folder, crew), weights_digest(folder.path, settings.weights)


def _load_torch(settings: WorkerSettings, folder: ModelFolder, crew: Crew) -> Runner:
    """With one rank there is nobody to agree with: nothing of the others is loaded."""
    if crew.grid.num_ranks == 1:
        from workers.engine.torch_loading import load_torch_runner

        return load_torch_runner(folder.path, torch_settings(settings))
    from workers.ranks.rank_loading import Around, load_ranked_runner

    around = Around(settings.name, settings.niceness, settings.step_stall_s, settings.logs)
    return load_ranked_runner(folder.path, torch_settings(settings), crew, around)


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
    block_bytes = simulated_pool(model, 1, settings.block_size).block_bytes
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


def drafting(settings: WorkerSettings) -> Drafting | None:
    """Nobody guesses for simulated workers: their text never says anything twice.

    Raises:
        InvalidSetting: the sizes do not fit each other.
    """
    least, most = settings.ngram_min_tokens, settings.ngram_max_tokens
    if least > most:
        reason = f"{most} is under ngram_min_tokens, which is {least}"
        raise InvalidSetting(setting="worker.ngram_max_tokens", reason=reason)
    if settings.speculative == "off" or settings.engine == "simulated":
        return None
    return Drafting(lambda: NgramDrafter(least, most), settings.draft_tokens)


def kv_class(runner: Runner, weights_digest: str) -> KvClass:
    return KvClass(weights_digest, runner.dtype, runner.block_size)
