"""How the ranks of a worker come to be: each loads its share, all agree on a pool, and they meet."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from proto.errors import InternalFault
from services.logs import LogSettings
from workers.engine.host_memory import HostMemory
from workers.engine.torch_loading import LoadedShare, RankMemory, load_share, plan_blocks
from workers.engine.torch_runner import TorchRunner, warm_up
from workers.engine.torch_settings import PoolSize, TorchSettings
from workers.model.config import read_config
from workers.model.decoder import Decoder
from workers.ranks.apart import RanksApart
from workers.ranks.crew import Crew
from workers.ranks.exchange import Exchange, make_rendezvous, open_exchange
from workers.ranks.grid import Grid
from workers.ranks.messages import Allocate, Load, Loaded, Ready
from workers.ranks.ranked_runner import RankedRunner
from workers.ranks.stage import Stage, share_out


class Around(NamedTuple):
    """What a follower is told of the process that it belongs to. Units: no exchange lasts over `stall_s`."""

    worker: str
    niceness: int
    stall_s: float
    logs: LogSettings


def load_ranked_runner(folder: Path, settings: TorchSettings, crew: Crew, around: Around) -> RankedRunner:
    """The leader's side of it. Once in the life of a crew.

    Raises:
        InvalidSetting: a model, grid, device, dtype or size that cannot be used.
        InternalFault: a follower has ended.
    """
    grid = crew.grid
    grid.check(read_config(folder))
    rendezvous = make_rendezvous()
    for rank, link in enumerate(crew.links, 1):
        link.send(_load_order(folder, settings, grid, rank, rendezvous, around))
    loaded = load_rank(folder, grid, 0, settings_of(settings, grid, 0))
    num_blocks = _agree(loaded, settings.pool, crew)
    pool_NIGLKPD = loaded.allocate(num_blocks)
    others = [ready.pool for ready in crew.gather(Ready)]
    exchange = _meet(crew, rendezvous, loaded, around.stall_s)
    own = TorchRunner(loaded.page(make_stage(loaded, grid, exchange), pool_NIGLKPD))
    runner = RankedRunner(own, others, crew)
    warm_up(runner)
    return runner


def _agree(loaded: LoadedShare, size: PoolSize, crew: Crew) -> int:
    """As many blocks as every rank has room for, which the followers make their pools of from now on."""
    others = [_memory_of(each) for each in crew.gather(Loaded)]
    num_blocks = plan_blocks(size, [loaded.measure(), *others])
    crew.send_all(Allocate(num_blocks))
    return num_blocks


def _meet(crew: Crew, rendezvous: Path, loaded: LoadedShare, stall_s: float) -> Exchange:
    """The leader's exchange, for as long as the crew lives."""
    try:
        return crew.keep(open_exchange(crew.grid, 0, rendezvous, loaded.device, stall_s))
    except RanksApart as error:
        raise InternalFault(reason=str(crew.find_cause(error))) from error


def load_rank(folder: Path, grid: Grid, rank: int, settings: TorchSettings) -> LoadedShare:
    """
    Raises:
        InvalidSetting: as `load_share`.
    """
    config = read_config(folder)
    return load_share(folder, config, grid.share_of(rank, config), settings)


def make_stage(loaded: LoadedShare, grid: Grid, exchange: Exchange) -> Stage:
    weights = share_out(loaded.weights, loaded.config.vocab_size, grid, exchange)
    return Stage(Decoder(loaded.config, weights), loaded.share, exchange)


def settings_of(settings: TorchSettings, grid: Grid, rank: int) -> TorchSettings:
    """A rank's own: of several devices the one after its leader's, of the threads its part."""
    kind, _, index = settings.device.partition(":")
    device = settings.device if kind == "cpu" else f"{kind}:{int(index or 0) + rank}"
    num_threads = max(1, settings.num_threads // grid.num_ranks)
    return msgspec.structs.replace(settings, device=device, num_threads=num_threads)


def _load_order(
    folder: Path, settings: TorchSettings, grid: Grid, rank: int, rendezvous: Path, around: Around
) -> Load:
    return Load(
        rank=rank,
        grid=grid,
        worker=around.worker,
        folder=str(folder),
        rendezvous=str(rendezvous),
        settings=settings_of(settings, grid, rank),
        niceness=around.niceness,
        stall_s=around.stall_s,
        logs=msgspec.structs.replace(around.logs, file=None),  # one process a file: theirs go to stderr
    )


def _memory_of(loaded: Loaded) -> RankMemory:
    return RankMemory(loaded.device, loaded.block_bytes, HostMemory(loaded.total_bytes, loaded.free_bytes))
