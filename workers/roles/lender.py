"""Who may touch blocks here: the owner's side of every grant and pin.

All methods run on the event loop. The engine has set granted blocks aside; what ends a grant decides whether
they go to the awaiting sequence or back to the pool.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from proto.control import AskGrant, BlockHolding, Granted, Holdings, Pin, Pinned, Unpinned
from proto.errors import GrantRefused, InvalidRequest
from proto.events import unpack_hashes
from proto.jobs import Landing
from proto.names import new_id
from workers.engine.engine import Engine
from workers.roles.grants import Grant, GrantTable
from workers.roles.owned_job import JobEnd, OwnedJob
from workers.roles.pins import PinTable
from workers.transfer.peers import Peers
from workers.transfer.transfers import Transfers

log = logging.getLogger(__name__)

MAX_PIN_S = 60.0


class Lender:
    """Args: `max_lent_share`: granted plus quarantined blocks stay under this share of the pool; `now_s`: the
    monotonic clock of grants and pins."""

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        transfers: Transfers,
        max_lent_share: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._transfers = transfers
        self._max_lent_share = max_lent_share
        self._jobs: dict[str, OwnedJob] = {}
        self._changed = asyncio.Event()
        self.grants = GrantTable(now_s)
        self.pins = PinTable(now_s)

    def open_job(self, owned: OwnedJob) -> None:
        self._jobs[owned.job.job] = owned

    def close_job(self, owned: OwnedJob) -> None:
        """Nobody awaits this job's KV any more: its grant, if it still lives, goes into quarantine."""
        del self._jobs[owned.job.job]
        if owned.grant is not None:
            self.grants.quarantine(owned.grant.granted.grant)
        self._changed.set()

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
        if owned.grant is not None:
            self.grants.quarantine(owned.grant.granted.grant)
        granted = Granted(new_id(), ask.job, owned.start, owned.end, blocks)
        owned.note_grant(
            self.grants.add(granted, owned.sequence, ask.holder, ask.holder_incarnation, card.process)
        )
        self._tell_leaves()
        return granted

    def can_lend(self, num_tokens: int) -> bool:
        """Whether blocks for so many tokens would keep within the share of the pool that may be lent."""
        settings = self._engine.settings
        wanted = -(-num_tokens // settings.block_size)
        return self.num_lent_blocks + wanted <= int(settings.num_blocks * self._max_lent_share)

    @property
    def num_lent_blocks(self) -> int:
        return self.grants.num_granted_blocks + self.grants.num_quarantined_blocks

    def land(self, landing: Landing) -> None:
        """Every write of a grant lies here. A notice that comes twice, or late, changes nothing."""
        grant = self._take(landing.grant)
        if grant is None:
            return
        owned = self._jobs.get(grant.granted.job)
        if owned is None or not owned.is_open or owned.grant is not grant:
            self._engine.give_back(grant.granted.blocks)
        elif self._engine.land(grant.sequence, grant.granted.blocks, grant.granted.end):
            owned.settle(JobEnd.LANDED)
        else:
            self._engine.give_back(grant.granted.blocks)
            owned.settle(JobEnd.FAILED, "its sequence is gone")

    def end_grant(self, grant_id: str, reason: str) -> None:
        """The holder will never write under this grant again: it said so, or its end is proven."""
        grant = self._take(grant_id)
        if grant is None:
            return
        self._engine.give_back(grant.granted.blocks)
        owned = self._jobs.get(grant.granted.job)
        if owned is not None and owned.grant is grant:
            owned.settle(JobEnd.FAILED, reason)

    def _take(self, grant_id: str) -> Grant | None:
        grant = self.grants.take(grant_id)
        self._tell_leaves()
        return grant

    def pin(self, ask: Pin) -> Pinned:
        """
        Raises:
            InvalidRequest: hashes or time are none.
        """
        if not ask.ttl_s > 0:
            raise InvalidRequest(field="ttl_s", reason=f"{ask.ttl_s} s is no time to read in")
        blocks = self._engine.pin(unpack_hashes(ask.hashes))
        return Pinned(self.pin_blocks(ask.reader, blocks, ask.ttl_s), blocks)

    def pin_blocks(self, reader: str, blocks: list[int], ttl_s: float) -> str:
        """Leave for `reader` to read blocks that the engine keeps already; no pin, when they are none."""
        if not blocks:
            return ""
        pin = new_id()
        self.pins.add(pin, reader, blocks, min(ttl_s, MAX_PIN_S))
        self._tell_leaves()
        return pin

    def unpin(self, pin: str) -> Unpinned:
        held = self.pins.take(pin)
        if held is None:
            return Unpinned(False)
        self._engine.unpin(held.blocks)
        self._tell_leaves()
        return Unpinned(True)

    def expire_pins(self) -> None:
        for held in self.pins.take_expired():
            log.warning("a pin ended before its reader let go", extra={"reader": held.reader})
            self._engine.unpin(held.blocks)
        self._tell_leaves()

    @property
    def num_open(self) -> int:
        """Grants and pins, but for those in quarantine, whose end nobody here awaits."""
        return self.grants.num_granted + len(self.pins)

    async def wait_ended(self) -> None:
        """Until no grant or pin is open."""
        while self.num_open:
            self._changed.clear()
            await self._changed.wait()

    def _tell_leaves(self) -> None:
        """While anybody has leave to touch blocks here, the transfer thread looks often."""
        self._changed.set()
        self._transfers.expect(len(self.grants) + len(self.pins.all()))

    def holdings(self, held: list[str]) -> Holdings:
        """All that is lent here, and the grants `held` by this worker of others' blocks."""
        load = self._engine.load()
        now_s = self.grants.now_s()

        def shown(grant: Grant) -> BlockHolding:
            age_s = now_s - grant.began_s
            return BlockHolding(grant.granted.grant, grant.holder, grant.num_blocks, age_s)

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
