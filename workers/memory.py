"""How a worker's memory is opened: an agent and a thread that moves KV for the pool of each rank."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from proto.cards import ProcessIdentity
from proto.layout import PoolLayout
from workers.engine.runner import Runner
from workers.ranks.crew import Crew
from workers.ranks.far_transfers import FarTransfers
from workers.ranks.messages import OpenTransfers
from workers.roles.proof import own_identity
from workers.roles.term import Term
from workers.transfer.moved import MovedCounter
from workers.transfer.opened_rank import open_rank
from workers.transfer.own_memory import HiddenPool, OwnMemory, OwnRank
from workers.transfer.staging import StagingSize
from workers.transfer.strategy import choose_strategy, staging_size
from workers.transfer.transfer_settings import TransferSettings, backend_parameters
from workers.transfer.transfer_thread import TransferThread
from workers.transfer.transfers import OnLanding

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryTools:
    """What the memory of every rank is opened with."""

    settings: TransferSettings
    term: Term
    on_landing: OnLanding
    moved: MovedCounter

    def opening(self, rank: int, staging: StagingSize | None) -> OpenTransfers:
        """Its agent has a name that no other life of this worker, and no other rank of it, has."""
        name = f"{self.term.worker}.{self.term.incarnation}"
        agent = f"{name}.{rank}" if rank else name
        return OpenTransfers(agent, backend_parameters(self.settings), self.settings.stall_s, staging)


@asynccontextmanager
async def open_memory(tools: MemoryTools, runner: Runner, crew: Crew) -> AsyncIterator[OwnMemory]:
    """The pools of `runner`, of which the first is of this process and the others are the crew's.

    Raises:
        InternalFault: NIXL does not start for one of them.
        InvalidSetting: there is no memory for staging.
    """
    own_pool, *pools = runner.pools
    staging = await asyncio.to_thread(_try_size, tools.settings, runner.pools)
    async with AsyncExitStack() as stack:
        leading = await stack.enter_async_context(_open_own(tools, tools.opening(0, staging), own_pool))
        processes = await asyncio.to_thread(crew.processes)
        following = []
        for rank, (process, pool) in enumerate(zip(processes, pools, strict=True), 1):
            opening = _open_far(
                _far_transfers(tools, crew, rank), tools.opening(rank, staging), process, pool
            )
            following.append(await stack.enter_async_context(opening))
        yield OwnMemory([leading, *following])


def _try_size(settings: TransferSettings, pools: tuple[PoolLayout, ...]) -> StagingSize | None:
    """None where peers reach the pools themselves."""
    if choose_strategy(settings, pools[0]) == "direct":
        return None
    size = staging_size(settings, pools)
    log.info("KV goes through memory of the host", extra={"staging_blocks": size.num_blocks})
    return size


@asynccontextmanager
async def _open_own(tools: MemoryTools, opening: OpenTransfers, pool: PoolLayout) -> AsyncIterator[OwnRank]:
    with open_rank(opening.agent, pool, opening.parameters, opening.staging, opening.stall_s) as opened:
        note_moved = partial(tools.moved.note, 0)
        transfers = TransferThread(opened.transport, tools.on_landing, note_moved, opening.stall_s)
        async with transfers.running() as agent:
            yield OwnRank(agent, own_identity(), transfers, opened.hidden)


def _far_transfers(tools: MemoryTools, crew: Crew, rank: int) -> FarTransfers:
    transfers = FarTransfers(crew.links[rank - 1], partial(tools.moved.note, rank))
    crew.on_fault(transfers.close)
    crew.check()
    return transfers


@asynccontextmanager
async def _open_far(
    transfers: FarTransfers, opening: OpenTransfers, process: ProcessIdentity, pool: PoolLayout
) -> AsyncIterator[OwnRank]:
    async with transfers.running(opening) as agent:
        hidden = None if opening.staging is None else HiddenPool(pool, transfers.carry)
        yield OwnRank(agent, process, transfers, hidden)
