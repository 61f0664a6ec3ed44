"""One prefill job in the hands of its holder, from the taking to the landing.

```
 taken ─► meet the owner ─► ask for the grant ─► pull the prefix that is missing here
       ─► compute, pushing layers as they are done ─► landing notice ─► done
 any failure, or the owner's word ─► stop ─► wait for what is on its way ─► release
```
"""

import asyncio
import logging
from dataclasses import dataclass

from proto.blockhash import block_hashes, block_salt
from proto.control import AskGrant, Done, GiveUp, Granted, Pin, Pinned, Release
from proto.errors import DeadlineExceeded, GrantRefused, InvalidRequest, KvmeshError
from proto.events import pack_hashes
from proto.jobs import PrefillJob
from proto.tokens import TOKEN_BYTES, count_tokens, unpack_tokens
from services.tracing import Tracing
from workers.bridge import EngineBridge
from workers.control_client import ControlClient
from workers.engine.engine import Engine
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceKind, SequenceSpec
from workers.request_spec import highest_token
from workers.roles.held_grants import HeldGrants
from workers.roles.pinned_reads import PinnedReads
from workers.roles.term import Term
from workers.transfer.own_memory import OwnMemory
from workers.transfer.peers import Peer, Peers
from workers.transfer.push import Push

ASK_TIMEOUT_S = 2.0
PIN_TTL_S = 20.0
RELEASE_TRIES = 3
MAX_JOB_S = 3600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HolderTools:
    """What every job of a holder works with."""

    term: Term
    engine: Engine
    bridge: EngineBridge
    memory: OwnMemory
    peers: Peers
    control: ControlClient
    reads: PinnedReads
    held: HeldGrants
    weights_digest: str
    tracing: Tracing


class HeldJob:
    """Runs one job: `run` in one task, `stop` from any other of the loop."""

    def __init__(self, job: PrefillJob, tools: HolderTools) -> None:
        self.job = job
        self.num_tokens = count_tokens(job.prompt)
        self._tools = tools
        self._sequence = f"job/{job.job}"
        self._salt = block_salt(tools.weights_digest, job.salt)
        self._is_scheduled = False
        self._stop: asyncio.Future[KvmeshError] = asyncio.get_running_loop().create_future()

    @property
    def num_unscheduled_tokens(self) -> int:
        """What is to be computed of it, while the engine does not know yet: the owner's prefix is pulled."""
        if self._is_scheduled or self.is_ending:
            return 0
        return max(0, self.num_tokens - self.job.cached_tokens)

    @property
    def is_ending(self) -> bool:
        """Whether it only waits for what is on its way: it computes nothing any more."""
        return self._stop.done()

    def stop(self, reason: KvmeshError) -> None:
        """Compute nothing more, write nothing more, and give the grant back; the first reason counts.

        It is no cancellation, so that an answer on its way is not lost, be it a grant or a pin.
        """
        if not self._stop.done():
            self._stop.set_result(reason)
            self._tools.engine.cancel(self._sequence)

    async def run(self) -> None:
        """Compute and push; returns once the landing notice is on its way.

        Cancel: for the end of the process, which nothing on its way holds up: the owner learns of that end,
        or by asking that nobody holds the grant.

        Raises:
            KvmeshError: it was stopped, or could not be done; the owner was told, if it could be reached.
        """
        deadline_s = self.job.deadline_s
        late = DeadlineExceeded(what=f"job {self.job.job}", limit_s=deadline_s)
        if not deadline_s > 0:
            self.stop(late)
        timer = asyncio.get_running_loop().call_later(min(max(0.0, deadline_s), MAX_JOB_S), self.stop, late)
        try:
            tracing = self._tools.tracing
            with tracing.span("prefill job", tracing.extract(self.job.trace), tokens=self.num_tokens):
                await self._run()
        except KvmeshError:
            self._check_wanted()
            raise
        finally:
            timer.cancel()

    def _check_wanted(self) -> None:
        if self._stop.done():
            raise self._stop.result()

    async def _run(self) -> None:
        try:
            self._check_wanted()
            peer = await self._tools.peers.meet(self.job.owner, self.job.owner_incarnation)
            self._check_wanted()
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
        if not self._tools.held.try_add(granted.grant):
            raise GrantRefused(job=self.job.job, reason="the grant came after its end")
        return granted

    async def _run_granted(self, peer: Peer, granted: Granted) -> None:
        push = Push(granted, peer, self._tools.memory, self.stop)
        try:
            with self._tools.peers.parting_if_gone(peer):
                await self._deliver(peer, granted, push)
        except KvmeshError:
            await self._end_grant(granted, peer, push)
            self._trace(push, granted, has_landed=False)
            raise
        self._tools.held.drop(granted.grant)
        self._trace(push, granted, has_landed=True)

    async def _deliver(self, peer: Peer, granted: Granted, push: Push) -> None:
        try:
            self._check_wanted()
            self._check_grant(granted, peer)
            await self._compute(peer, granted, push)
            await push.land()
        finally:
            push.stop()
            self._tools.engine.cancel(self._sequence)

    def _trace(self, push: Push, granted: Granted, has_landed: bool) -> None:
        """From the first write, which others compute beside, until all has landed or nothing more will; and
        what of that was after the computation's end, when somebody waited for it."""
        code = "" if has_landed else "not_landed"
        if push.began_s:
            num_blocks = len(granted.blocks)
            self._tools.tracing.record(
                "push",
                push.began_s,
                code=code,
                num_blocks=num_blocks,
                num_bytes=push.num_bytes,
                strategy=self._tools.memory.strategy,
            )
        if push.computed_s:
            left_bytes = push.num_bytes - push.num_computed_bytes
            self._tools.tracing.record("push tail", push.computed_s, code=code, num_bytes=left_bytes)

    def _check_grant(self, granted: Granted, peer: Peer) -> None:
        size, num_blocks = self._tools.memory.block_size, peer.num_blocks
        is_whole = granted.start % size == 0 and 0 <= granted.start < granted.end <= self.num_tokens
        if not is_whole or len(granted.blocks) != -(-(granted.end - granted.start) // size):
            reason = f"{len(granted.blocks)} blocks for tokens {granted.start} to {granted.end}"
            raise InvalidRequest(field="grant", reason=reason)
        if not all(0 <= block < num_blocks for block in granted.blocks):
            raise InvalidRequest(field="grant", reason=f"a block beyond the pool of {num_blocks}")

    async def _end_grant(self, granted: Granted, peer: Peer, push: Push) -> None:
        """Once nothing is on its way any more, the blocks are the owner's again.

        A write that was posted and failed proves nothing: its bytes may lie in a buffer of the owner's host.
        Such a grant stays in quarantine there until one of the two processes ends. One that is stuck is
        waited for here, and not by the owner.
        """
        if push.is_stalled:
            await self._tell_owner(GiveUp(self.job.job, "a write is stuck"))
        await push.wait_settled()
        if push.may_land_late:
            self._tools.peers.part(peer)
            self._tools.held.doubt(granted.grant, peer.card.processes)
            await self._tell_owner(GiveUp(self.job.job, "a write failed"))
        else:
            self._tools.held.drop(granted.grant)
            await self._tell_owner(Release(granted.grant))

    async def _compute(self, peer: Peer, granted: Granted, push: Push) -> None:
        """The sequence is held until every write of its blocks has ended: nobody else gets them before."""
        engine, bridge = self._tools.engine, self._tools.bridge
        with bridge.following(self._sequence, push) as held:
            cached = engine.add(self._spec(), await_kv=True)
            if cached < granted.start:
                cached = await self._pull_prefix(peer, cached, granted.start)
            self._check_wanted()
            if cached > granted.start:
                self._push_cached(push, cached)
            engine.recall(self._sequence)
            self._is_scheduled = True
            await asyncio.wait((held, self._stop), return_when=asyncio.FIRST_COMPLETED)
            self._check_wanted()
            await held
            await push.complete(engine.block_table(self._sequence))
            self._check_wanted()  # a sequence that was stopped meanwhile was not held
        engine.release(self._sequence)

    def _push_cached(self, push: Push, cached: int) -> None:
        blocks = self._tools.engine.block_table(self._sequence)
        num_blocks = -(-cached // self._tools.memory.block_size)
        push.write_whole(0, cached, blocks[:num_blocks])

    async def _pull_prefix(self, peer: Peer, cached: int, wanted: int) -> int:
        """Read what the owner has beyond `cached`; returns how much is here afterwards.

        A pull that fails costs a computation, not the job.
        """
        try:
            pinned = await self._pin(wanted)
            theirs = pinned.blocks[cached // self._tools.memory.block_size :]
            with self._tools.peers.parting_if_gone(peer):
                await self._tools.reads.read(peer, pinned.pin, theirs, self._sequence, wanted)
        except KvmeshError as error:
            log.info("a pull failed; computing instead", extra={"job": self.job.job, "reason": str(error)})
            return cached
        return wanted

    async def _pin(self, end: int) -> Pinned:
        hashes = block_hashes(self.job.prompt[: end * TOKEN_BYTES], self._tools.memory.block_size, self._salt)
        pin = Pin(self._tools.term.worker, pack_hashes(hashes), PIN_TTL_S)
        return await self._tools.control.ask(self.job.owner, pin, Pinned, ASK_TIMEOUT_S)

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
            highest_token=highest_token(self.job.prompt),
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
