"""Who may touch blocks here: the owner's side of every grant and pin.

All methods run on the event loop. The engine has set granted blocks aside; what ends a grant decides whether
they go to the awaiting sequence or back to the pool. Which blocks others are told of, `lent_blocks` knows.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Container
from functools import partial

from proto.control import AskGrant, BlockHolding, Granted, Holdings, Pin, Pinned, Unpinned
from proto.errors import GrantRefused, InvalidRequest, KvmeshError
from proto.events import unpack_hashes
from proto.jobs import Landing
from proto.names import new_id
from workers.engine.engine import Engine
from workers.roles.grants import Grant, GrantTable
from workers.roles.lent_blocks import lent_blocks_of
from workers.roles.owned_job import JobEnd, OwnedJob
from workers.roles.pins import HeldPin, PinTable
from workers.transfer.own_memory import OwnMemory
from workers.transfer.peers import Peers

log = logging.getLogger(__name__)

MAX_PIN_S = 60.0


class Lender:
    """Args: `max_lent_share`: granted plus quarantined blocks stay under this share of the pool; `now_s`: the
    monotonic clock of grants and pins."""

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        memory: OwnMemory,
        max_lent_share: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._memory = memory
        self._max_lent_share = max_lent_share
        self._jobs: dict[str, OwnedJob] = {}
        self._changed = asyncio.Event()
        self.lent = lent_blocks_of(memory)
        self.grants = GrantTable(now_s)
        self.pins = PinTable(now_s)

    def open_job(self, owned: OwnedJob) -> None:
        self._jobs[owned.job.job] = owned

    def close_job(self, owned: OwnedJob) -> None:
        """Nobody awaits this job's KV any more: its grant, if it still lives, goes into quarantine."""
        del self._jobs[owned.job.job]
        if owned.grant is not None:
            self._quarantine(owned.grant)
        self._changed.set()

    def _quarantine(self, grant: Grant) -> None:
        """Blocks of the pool that nobody else touches can be used at once."""
        self.grants.quarantine(grant.granted.grant)
        if grant.is_quarantined and self.lent.is_apart:
            self._give_back(grant)

    def _give_back(self, grant: Grant) -> None:
        """Those of the pool; none, if that was done before."""
        blocks, grant.blocks = grant.blocks, []
        self._engine.give_back(blocks)

    def give_up(self, job: str, reason: str) -> None:
        """A taker says that it cannot do the job. A grant, of whomever, goes into quarantine with its end."""
        owned = self._jobs.get(job)
        if owned is not None:
            owned.fail(reason)

    def lose(self, worker: str) -> None:
        """A worker is lost: what it had taken ends; its grants stay closed until its end is proven."""
        for owned in list(self._jobs.values()):
            if owned.is_with(worker):
                owned.settle(JobEnd.FAILED, f"{worker} was lost")

    def grant(self, ask: AskGrant) -> Granted:
        """Set blocks aside for the holder's writes.

        Raises:
            GrantRefused: the job is done with, the holder cannot be fenced, or too much is lent already.
        """
        owned = self._jobs.get(ask.job)
        if owned is None or not owned.is_open:
            raise GrantRefused(job=ask.job, reason="the job is done with")
        if owned.grant is not None and owned.grant.is_landing:
            raise GrantRefused(job=ask.job, reason="all of it has been written")
        asked = self.grants.find_asked(ask.job, ask.holder_incarnation)
        if asked is not None:
            return asked.granted
        try:
            return self._grant_anew(owned, ask)
        except GrantRefused as error:
            if owned.grant is None:
                owned.settle(JobEnd.FAILED, str(error))
            raise

    def _grant_anew(self, owned: OwnedJob, ask: AskGrant) -> Granted:
        card = self._peers.card(ask.holder, ask.holder_incarnation)
        if card is None:
            raise GrantRefused(job=ask.job, reason=f"{ask.holder} is not in the directory")
        if not self.can_lend(owned.end - owned.start):
            raise GrantRefused(job=ask.job, reason=f"{self.num_lent_blocks} blocks are lent already")
        blocks = self._engine.set_aside(owned.sequence, owned.end)
        lent = self.lent.try_lend(blocks)
        if lent is None:
            self._engine.give_back(blocks)
            raise GrantRefused(job=ask.job, reason="no staging blocks are free")
        if owned.grant is not None:
            self._quarantine(owned.grant)
        granted = Granted(new_id(), ask.job, owned.start, owned.end, lent)
        holder = (ask.holder, ask.holder_incarnation, card.processes)
        owned.note_grant(self.grants.add(granted, blocks, owned.sequence, *holder))
        self._tell_leaves()
        return granted

    def can_lend(self, num_tokens: int) -> bool:
        """Whether blocks for so many tokens would keep within the share of the pool that may be lent; and
        there is room where others write."""
        settings = self._engine.settings
        wanted = -(-num_tokens // settings.block_size)
        is_within = self.num_lent_blocks + wanted <= int(settings.num_blocks * self._max_lent_share)
        return is_within and self.lent.has_room(wanted)

    @property
    def num_lent_blocks(self) -> int:
        return self.grants.num_granted_blocks + self.grants.num_quarantined_blocks

    def land(self, landing: Landing) -> None:
        """Every write of a grant lies here. A notice that comes twice, or late, changes nothing."""
        grant = self.grants.begin_landing(landing.grant)
        if grant is None:
            return
        if self._awaiting(grant) is None:
            self._end_landing(grant, None)
        else:
            self.lent.fetch(grant.granted.blocks, grant.blocks, partial(self._end_landing, grant))

    def _awaiting(self, grant: Grant) -> OwnedJob | None:
        """The job that still awaits what came under this very grant."""
        owned = self._jobs.get(grant.granted.job)
        return owned if owned is not None and owned.is_open and owned.grant is grant else None

    def _end_landing(self, grant: Grant, fault: KvmeshError | None) -> None:
        """It lies in the pool's blocks, if there is no fault."""
        self.grants.end_landing(grant)
        self.lent.put_back(grant.granted.blocks)
        self._tell_leaves()
        owned = self._awaiting(grant)
        if owned is None:
            self._give_back(grant)
        elif fault is not None:
            self._give_back(grant)
            owned.settle(JobEnd.FAILED, str(fault))
        elif self._engine.land(grant.sequence, grant.blocks, grant.granted.end):
            owned.settle(JobEnd.LANDED)
        else:
            self._give_back(grant)
            owned.settle(JobEnd.FAILED, "its sequence is gone")

    def end_grant(self, grant_id: str, reason: str) -> None:
        """The holder will never write under this grant again: it said so, or its end is proven."""
        grant = self.grants.take(grant_id)
        if grant is None:
            return
        self._tell_leaves()
        self._give_back(grant)
        self.lent.put_back(grant.granted.blocks)
        owned = self._jobs.get(grant.granted.job)
        if owned is not None and owned.grant is grant:
            owned.settle(JobEnd.FAILED, reason)

    def pin(self, ask: Pin) -> Pinned:
        """As `pin_blocks`, of what is cached.

        Raises:
            InvalidRequest: hashes or time are none.
        """
        if not ask.ttl_s > 0:
            raise InvalidRequest(field="ttl_s", reason=f"{ask.ttl_s} s is no time to read in")
        blocks = self._engine.pin(unpack_hashes(ask.hashes))
        return self.pin_blocks(ask.reader, blocks, ask.ttl_s)

    def pin_blocks(self, reader: str, blocks: list[int], ttl_s: float, sequence: str = "") -> Pinned:
        """Leave for `reader` to read blocks that the engine keeps already; it may be told after `show`.

        Without a pin, and without blocks, when they are none or there is no room where others read.
        """
        lent = self.lent.try_lend(blocks)
        if not lent:
            self._engine.unpin(blocks)
            return Pinned("", [])
        pin = new_id()
        self.pins.add(pin, reader, blocks, lent, min(ttl_s, MAX_PIN_S), sequence)
        self._tell_leaves()
        return Pinned(pin, lent)

    async def show(self, pin: str) -> None:
        """Until the reader finds under the pin what is pinned. Cancel: the pin holds.

        Raises:
            InternalFault: it cannot be copied there; the pin has ended.
        """
        held = self.pins.find(pin)
        if held is None:
            return
        try:
            await self.lent.show(held.blocks, held.lent)
        except KvmeshError:
            self.unpin(pin)
            raise

    def unpin(self, pin: str) -> Unpinned:
        held = self.pins.take(pin)
        if held is None:
            return Unpinned(False)
        self._end_pin(held)
        self._tell_leaves()
        return Unpinned(True)

    def _end_pin(self, held: HeldPin) -> None:
        self._engine.unpin(held.blocks)
        self.lent.put_back(held.lent)

    def expire_pins(self) -> None:
        for held in self.pins.take_expired():
            log.warning("a pin ended before its reader let go", extra={"reader": held.reader})
            self._end_pin(held)
        self._tell_leaves()

    @property
    def num_open(self) -> int:
        """Grants and pins, but for those in quarantine, whose end nobody here awaits."""
        return self.grants.num_granted + len(self.pins)

    def num_open_beside(self, sequences: Container[str]) -> int:
        """As `num_open`, but for those that belong to one of `sequences`."""
        of_grants = [one.sequence for one in self.grants.all() if not one.is_quarantined]
        of_pins = [one.sequence for one in self.pins.all()]
        return sum(sequence not in sequences for sequence in of_grants + of_pins)

    async def wait_ended(self) -> None:
        """Until no grant or pin is open."""
        while self.num_open:
            self._changed.clear()
            await self._changed.wait()

    def _tell_leaves(self) -> None:
        """While anybody has leave to touch blocks here, the transfer threads look often."""
        self._changed.set()
        self._memory.expect(len(self.grants) + len(self.pins.all()))

    def holdings(self, held: list[str]) -> Holdings:
        """All that is lent here, and the grants `held` by this worker of others' blocks."""
        load = self._engine.load()
        now_s = self.grants.now_s()

        def shown(grant: Grant) -> BlockHolding:
            age_s = now_s - grant.began_s
            return BlockHolding(grant.granted.grant, grant.holder, len(grant.granted.blocks), age_s)

        grants = self.grants.all()
        return Holdings(
            granted=[shown(grant) for grant in grants if not grant.is_quarantined],
            quarantined=[shown(grant) for grant in grants if grant.is_quarantined],
            pinned=[
                BlockHolding(held.pin, held.reader, len(held.blocks), now_s - held.began_s)
                for held in self.pins.all()
            ],
            free_blocks=load.free_blocks,
            total_blocks=load.total_blocks,
            active_blocks=load.active_blocks,
            cached_blocks=load.cached_blocks,
            held=held,
        )
