"""A worker's own memory: the pools of all its ranks, and what moves KV in and out of each."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proto.cards import AgentCard, ProcessIdentity, RankAgent, Strategy
from proto.errors import KvmeshError
from proto.layout import PoolLayout
from workers.transfer.copy_plan import BlockPairs, Copies, plan_copies
from workers.transfer.transfers import OnDone, Transfers


@dataclass(frozen=True, slots=True)
class HiddenPool:
    """A pool that peers do not see: what they see is staging, and `carry` copies between the two. It may be
    called from any thread, and calls back in another. `ailment` tells of a copy that has hung, if those who
    move the rank's KV do not."""

    pool: PoolLayout
    carry: Callable[[Copies, OnDone], None]
    ailment: Callable[[], str] = str


@dataclass(frozen=True, slots=True)
class OwnRank:
    """One rank: how peers reach its pool, whose process may write into theirs, and what moves its KV.

    With a `hidden` pool what peers reach is staging in its place.
    """

    agent: RankAgent
    process: ProcessIdentity
    transfers: Transfers
    hidden: HiddenPool | None = None

    @property
    def pool(self) -> PoolLayout:
        return self.agent.pool if self.hidden is None else self.hidden.pool

    @property
    def ailment(self) -> str:
        """See `Transfers`; a copy between the pool and its staging counts as one."""
        return self.transfers.ailment or ("" if self.hidden is None else self.hidden.ailment())


class OwnMemory:
    """The ranks of a worker, in their order. The first is of this process and speaks for all of them.

    A block is one number in all pools; a rank has some layers or heads of it. So is a staging block, where
    there are such: then all ranks have them. Every method may be called from any thread.
    """

    def __init__(self, ranks: Sequence[OwnRank]) -> None:
        self.ranks = tuple(ranks)
        self.pools: tuple[PoolLayout, ...] = tuple(rank.pool for rank in ranks)

    @property
    def strategy(self) -> Strategy:
        return "direct" if self.ranks[0].hidden is None else "host"

    @property
    def num_staging_blocks(self) -> int:
        """None where peers reach the pools."""
        return 0 if self.strategy == "direct" else min(rank.agent.pool.num_blocks for rank in self.ranks)

    def stage(self, blocks: Sequence[int], staged: Sequence[int], on_done: OnDone) -> None:
        """Copy blocks of the pools into staging blocks, in all ranks; only where there are such."""
        self._carry(lambda rank: _copies(rank.pool, rank.agent.pool, blocks, staged), on_done)

    def unstage(self, staged: Sequence[int], blocks: Sequence[int], on_done: OnDone) -> None:
        """As `stage`, the other way."""
        self._carry(lambda rank: _copies(rank.agent.pool, rank.pool, staged, blocks), on_done)

    def _carry(self, plan: Callable[[OwnRank], Copies], on_done: OnDone) -> None:
        joined = _Joined(len(self.ranks), on_done)
        for rank in self.ranks:
            assert rank.hidden is not None
            rank.hidden.carry(plan(rank), joined.settle_one)

    @property
    def block_size(self) -> int:
        return self.pools[0].block_size

    @property
    def num_blocks(self) -> int:
        return min(pool.num_blocks for pool in self.pools)

    @property
    def block_bytes(self) -> int:
        """What a block takes in all ranks together."""
        return sum(pool.block_bytes for pool in self.pools)

    @property
    def fault(self) -> str:
        """Why nothing moves any more, in a few words; empty while all is well with every rank."""
        return self._of_ranks([rank.transfers.fault for rank in self.ranks])

    @property
    def ailment(self) -> str:
        """`fault`, or that what was posted by a rank, or is copied there, does not end."""
        return self._of_ranks([rank.ailment for rank in self.ranks])

    def _of_ranks(self, reasons: list[str]) -> str:
        if len(reasons) == 1:
            return reasons[0]
        return "; ".join(f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason)

    def expect(self, num_leaves: int) -> None:
        """See `Transfers`: who has leave to touch a block may touch it in any rank."""
        for rank in self.ranks:
            rank.transfers.expect(num_leaves)

    def notify(self, agent: str, notice: bytes, on_done: OnDone) -> None:
        """Send a notice for all ranks; what was `on_done` at any of them lies at the target by then."""
        self.ranks[0].transfers.notify(agent, notice, on_done)

    def card(self, worker: str, incarnation: str) -> AgentCard:
        """How others reach all of it."""
        first, *followers = [rank.process for rank in self.ranks]
        return AgentCard(worker, incarnation, first, [rank.agent for rank in self.ranks], followers)


class _Joined:
    """Tells once, when all have ended, of the first fault among them."""

    def __init__(self, num_left: int, on_done: OnDone) -> None:
        self._lock = threading.Lock()
        self._num_left = num_left
        self._on_done = on_done
        self._fault: KvmeshError | None = None

    def settle_one(self, fault: KvmeshError | None) -> None:
        with self._lock:
            self._num_left -= 1
            self._fault = self._fault or fault
            is_last = not self._num_left
        if is_last:
            self._on_done(self._fault)


def _copies(source: PoolLayout, target: PoolLayout, blocks: Sequence[int], into: Sequence[int]) -> Copies:
    return plan_copies(source, target, BlockPairs(blocks, into), source.layers)
