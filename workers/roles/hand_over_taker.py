"""The taker's side of a hand-over: the KV of a sequence that runs elsewhere comes here, then the sequence.

```
 accepted ─► bulk read while the source decodes ─► TakeOver: its tokens ─► last blocks read ─► it goes on
    any failure ─────────────────────────────────────────────► what is missing is computed here ───┘
```
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from proto.control import Done
from proto.errors import DeadlineExceeded, KvmeshError
from proto.hand_over import HandBack, PinSequence, SequencePinned, TakenOver, TakeOver
from proto.requests import KvSource
from proto.streams import Prefilled
from proto.tokens import unpack_tokens
from services.metrics import WorkerMetrics
from workers.control_client import ControlClient
from workers.engine.engine import Engine
from workers.engine.sequence import SequenceSpec
from workers.roles.pinned_reads import PinnedReads
from workers.roles.term import Term
from workers.transfer.peers import Peer, Peers

ASK_TIMEOUT_S = 2.0
TAKE_OVER_TIMEOUT_S = 3.0
NUM_TAKE_OVERS = 2
PIN_TTL_S = 20.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TakerTools:
    """What every hand-over to this worker works with.

    Units: `bulk_blocks` blocks from which on a read while the source decodes is worth its three messages.
    """

    term: Term
    engine: Engine
    peers: Peers
    control: ControlClient
    reads: PinnedReads
    block_size: int
    bulk_blocks: int
    metrics: WorkerMetrics


@dataclass(slots=True)
class Taken:
    """What came with the sequence: its `tokens` since its attempt here began, with their records, and the
    `num_computed` of all whose KV is here now. `prefilled` is None when the source did not say."""

    num_computed: int
    tokens: list[int]
    prefilled: Prefilled | None = None
    logprobs: bytes = b""

    @property
    def is_given(self) -> bool:
        """Whether the source has stopped for this worker, and said all."""
        return self.prefilled is not None


class Taking:
    """One hand-over: `run` in one task, `stop` from any other of the loop.

    Units: `stopped_s` on the monotonic clock, when the source was asked to stop; 0 before.
    """

    def __init__(
        self, request: str, source: KvSource, spec: SequenceSpec, cached: int, tools: TakerTools
    ) -> None:
        self.stopped_s = 0.0
        self._request = request
        self._source = source
        self._spec = spec
        self._tools = tools
        self._taken = Taken(cached, [])
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """It was cancelled here. An answer on its way is awaited, so that no pin is left behind."""
        self._stopped.set()

    async def run(self) -> Taken:
        """The sequence has all that could be had of its KV, and awaits nothing more; its caller schedules it.

        Cancel: for the end of the process; what the source keeps for us expires.
        """
        peer = await self._try_meet()
        if peer is not None and not self._stopped.is_set():
            await self._read_bulk(peer)
        if not self._stopped.is_set():
            await self._take_over(peer)
        return self._taken

    async def _try_meet(self) -> Peer | None:
        try:
            return await self._tools.peers.meet(self._source.worker, self._source.incarnation)
        except KvmeshError as error:
            log.info("no KV comes from %s", self._source.worker, extra={"reason": str(error)})
            return None

    async def _read_bulk(self, peer: Peer) -> None:
        """All full blocks of the tokens that are known here, while the source goes on; but what is little is
        read no later with the rest, which spares it messages."""
        size, first = self._tools.block_size, self._num_blocks
        num_wanted = (len(self._spec.tokens) - 1) // size - first
        if num_wanted < max(1, self._tools.bulk_blocks):
            return
        ask = PinSequence(self._request, self._source.attempt, self._tools.term.worker, first, PIN_TTL_S)
        try:
            pinned = await self._tools.control.ask(self._source.worker, ask, SequencePinned, ASK_TIMEOUT_S)
        except KvmeshError as error:
            log.info("nothing is pinned for a hand-over", extra={"reason": str(error)})
            return
        blocks = pinned.blocks[:num_wanted]
        await self._try_read(peer, pinned.pin, blocks, (first + len(blocks)) * size)

    async def _take_over(self, peer: Peer | None) -> None:
        """The source stops, and this worker has its tokens; then it is this worker's turn."""
        self.stopped_s = time.monotonic()
        over = await self._ask_over()
        if over is None:
            return
        tokens = unpack_tokens(over.tokens)
        if self._stopped.is_set() or not self._is_grown(tokens):
            await self._undo(over)
            return
        self._taken.tokens, self._taken.prefilled = tokens, over.prefilled
        self._taken.logprobs = over.logprobs
        await self._read_rest(peer, over)
        if self._stopped.is_set():
            await self._hand_back()

    async def _read_rest(self, peer: Peer | None, over: TakenOver) -> None:
        """What the source has computed and is not here."""
        if peer is not None and over.num_computed > self._taken.num_computed:
            await self._try_read(peer, over.pin, over.blocks, over.num_computed)
        else:
            await self._tools.reads.unpin(self._source.worker, over.pin)
        is_pulled = self._taken.num_computed >= over.num_computed
        self._tools.metrics.handed_over("pulled" if is_pulled else "recomputed")

    def _is_grown(self, tokens: list[int]) -> bool:
        try:
            return self._tools.engine.extend(self._spec.sequence, tokens)
        except KvmeshError as error:
            log.error("a source gives wrong tokens", extra={"reason": str(error)})
            return False

    async def _ask_over(self) -> TakenOver | None:
        """None when the source does not give it: it has ended there, or the source is gone."""
        ask = TakeOver(
            request=self._request,
            attempt=self._source.attempt,
            reader=self._tools.term.worker,
            offset=len(self._spec.tokens) - self._spec.num_prompt,
            first=self._num_blocks,
            ttl_s=PIN_TTL_S,
        )
        for _ in range(NUM_TAKE_OVERS):
            try:
                return await self._tools.control.ask(self._source.worker, ask, TakenOver, TAKE_OVER_TIMEOUT_S)
            except DeadlineExceeded:
                continue
            except KvmeshError as error:
                log.info("%s hands nothing over", self._source.worker, extra={"reason": str(error)})
                return None
        return None

    async def _undo(self, over: TakenOver) -> None:
        await self._tools.reads.unpin(self._source.worker, over.pin)
        await self._hand_back()

    async def _hand_back(self) -> None:
        """Should this be lost, the source goes on by itself after a while."""
        back = HandBack(self._request, self._source.attempt)
        try:
            await self._tools.control.ask(self._source.worker, back, Done, ASK_TIMEOUT_S)
        except KvmeshError as error:
            log.info("%s was not told to go on", self._source.worker, extra={"reason": str(error)})

    async def _try_read(self, peer: Peer, pin: str, blocks: list[int], end: int) -> None:
        if end <= self._taken.num_computed or not blocks:
            await self._tools.reads.unpin(self._source.worker, pin)
            return
        try:
            with self._tools.peers.parting_if_gone(peer):
                await self._tools.reads.read(peer, pin, blocks, self._spec.sequence, end)
        except KvmeshError as error:
            log.info("a pull failed; computing instead", extra={"reason": str(error)})
        else:
            self._taken.num_computed = end

    @property
    def _num_blocks(self) -> int:
        return self._taken.num_computed // self._tools.block_size
