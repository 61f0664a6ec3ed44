"""One prefill job in the hands of its holder, from the taking to the landing.

```
 taken ─► meet the owner ─► ask for the grant ─► pull the prefix that is missing here
       ─► compute, pushing layers as they are done ─► landing notice ─► done
 any failure, or the owner's word ─► stop writing ─► wait for what is on its way ─► release
```
"""

import logging
from dataclasses import dataclass

from proto.blockhash import block_hashes, block_salt
from proto.control import AskGrant, Done, GiveUp, Granted, Pin, Pinned, Release, Unpin, Unpinned
from proto.errors import GrantRefused, KvmeshError, PinLost, TransferFault
from proto.events import pack_hashes
from proto.jobs import PrefillJob
from proto.layout import LayerRange, PoolLayout
from proto.tokens import count_tokens, unpack_tokens
from workers.bridge import EngineBridge
from workers.control_client import ControlClient
from workers.engine.engine import Engine
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceKind, SequenceSpec
from workers.roles.held_grants import HeldGrants
from workers.roles.term import Term
from workers.transfer.peers import Peer, Peers
from workers.transfer.pull import pull_blocks
from workers.transfer.push import Push
from workers.transfer.transfer_thread import TransferThread

ASK_TIMEOUT_S = 2.0
PIN_TTL_S = 20.0
RELEASE_TRIES = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HolderTools:
    """What every job of a holder works with."""

    term: Term
    engine: Engine
    bridge: EngineBridge
    transfers: TransferThread
    peers: Peers
    control: ControlClient
    held: HeldGrants
    pool: PoolLayout
    weights_digest: str


class HeldJob:
    """Runs one job. `run` belongs to one task, whose cancellation ends the job in good order."""

    def __init__(self, job: PrefillJob, tools: HolderTools) -> None:
        self.job = job
        self._tools = tools
        self._sequence = f"job/{job.job}"
        self._salt = block_salt(tools.weights_digest, job.salt)
        self.num_tokens = count_tokens(job.prompt)

    async def run(self) -> None:
        """Compute and push; returns once the landing notice is on its way.

        Cancel: nothing more is written, what is on its way ends, and the owner is told.

        Raises:
            KvmeshError: it could not be done; the owner was told, as far as it could be reached.
        """
        try:
            peer = await self._tools.peers.meet(self.job.owner, self.job.owner_incarnation)
            granted = await self._ask_grant()
        except GrantRefused:
            raise
        except KvmeshError as error:
            await self._tell_owner(GiveUp(self.job.job, str(error)))
            raise
        await self._run_granted(peer, granted)

    async def _ask_grant(self) -> Granted:
        term = self._tools.term
        ask = AskGrant(self.job.job, term.worker, term.incarnation)
        granted = await self._tools.control.ask(self.job.owner, ask, Granted, ASK_TIMEOUT_S)
        self._tools.held.add(granted.grant)
        return granted

    async def _run_granted(self, peer: Peer, granted: Granted) -> None:
        push = Push(granted, peer, self._tools.pool, self._tools.transfers)
        try:
            await self._compute(peer, granted, push)
            await push.land()
        except BaseException:
            push.stop()
            await self._end_grant(granted, push)
            raise
        finally:
            self._tools.engine.cancel(self._sequence)
        self._tools.held.drop(granted.grant)

    async def _end_grant(self, granted: Granted, push: Push) -> None:
        """Once nothing is on its way any more, the blocks are the owner's again."""
        await push.wait_settled()
        self._tools.held.drop(granted.grant)
        await self._tell_owner(Release(granted.grant))

    async def _compute(self, peer: Peer, granted: Granted, push: Push) -> None:
        engine, bridge = self._tools.engine, self._tools.bridge
        with bridge.following(self._sequence, push) as held:
            cached = engine.add(self._spec(), await_kv=True)
            if cached < granted.start:
                cached = await self._pull_prefix(peer, cached, granted.start)
            if cached > granted.start:
                self._push_cached(push, cached)
            engine.recall(self._sequence)
            await held
        engine.release(self._sequence)

    def _push_cached(self, push: Push, cached: int) -> None:
        blocks = self._tools.engine.block_table(self._sequence)
        pool = self._tools.pool
        num_blocks = -(-cached // pool.block_size)
        push.write(0, cached, blocks[:num_blocks], LayerRange(pool.first_layer, pool.num_layers))

    async def _pull_prefix(self, peer: Peer, cached: int, wanted: int) -> int:
        """Read what the owner has beyond `cached`; returns how much is here afterwards.

        A pull that fails costs a computation, not the job.
        """
        engine = self._tools.engine
        try:
            blocks = engine.set_aside(self._sequence, wanted)
        except GrantRefused as error:
            log.info("no room for a pull; computing instead", extra={"reason": str(error)})
            return cached
        try:
            await self._read_pinned(peer, cached // self._tools.pool.block_size, blocks)
        except TransferFault as error:
            log.info("a pull failed; computing instead", extra={"job": self.job.job, "reason": str(error)})
            engine.give_back(blocks)
            return cached
        except BaseException:
            engine.give_back(blocks)
            raise
        if engine.land(self._sequence, blocks, wanted):
            return wanted
        engine.give_back(blocks)
        return cached

    async def _read_pinned(self, peer: Peer, skip: int, ours: list[int]) -> None:
        """
        Raises:
            PinLost: the owner no longer has all of it, or did not keep it until the end.
        """
        size = self._tools.pool.block_size
        end_bytes = (skip + len(ours)) * size * 4
        hashes = block_hashes(self.job.prompt[:end_bytes], size, self._salt)
        pin = Pin(self._tools.term.worker, pack_hashes(hashes), PIN_TTL_S)
        pinned = await self._tools.control.ask(self.job.owner, pin, Pinned, ASK_TIMEOUT_S)
        theirs = pinned.blocks[skip : skip + len(ours)]
        try:
            if len(theirs) == len(ours):
                await pull_blocks(peer, theirs, self._tools.pool, ours, self._tools.transfers)
        finally:
            was_held = await self._unpin(pinned.pin)
        if len(theirs) != len(ours) or not was_held:
            raise PinLost(pin=pinned.pin or "none")

    async def _unpin(self, pin: str) -> bool:
        if not pin:
            return False
        try:
            reply = await self._tools.control.ask(self.job.owner, Unpin(pin), Unpinned, ASK_TIMEOUT_S)
        except KvmeshError:
            return False
        return reply.was_held

    def _spec(self) -> SequenceSpec:
        return SequenceSpec(
            sequence=self._sequence,
            kind=SequenceKind.PREFILL,
            tokens=unpack_tokens(self.job.prompt),
            num_prompt=self.num_tokens,
            sample=SampleParams(),
            max_tokens=0,
            stop_tokens=frozenset(),
            salt=self._salt,
            priority=self.job.priority,
        )

    async def _tell_owner(self, word: Release | GiveUp) -> None:
        """Tried a few times; an owner that never hears it asks by itself what is held here."""
        for _ in range(RELEASE_TRIES):
            try:
                await self._tools.control.ask(self.job.owner, word, Done, ASK_TIMEOUT_S)
            except KvmeshError as error:
                log.info("%s was not told", self.job.owner, extra={"reason": str(error)})
            else:
                return
