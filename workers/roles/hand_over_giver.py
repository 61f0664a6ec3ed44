"""The source's side of a hand-over: what others may read of sequences that run here, and their freezing.

```
            TakeOver             cancelled by its frontend, which has the taker's tokens
 running ────────────► frozen ──────────────────────────────────────────────────────────► gone
    ▲                    │
    └────────────────────┘ handed back, or nobody has asked for a while
```

A worker that lets go of all stops all with the first that is taken: whoever asks for the next ones need not
wait for a step that those compute which nobody has asked for yet. Each stops so once, and for a moment.
"""

import asyncio

from proto.control import Pinned
from proto.errors import DeadlineExceeded, InvalidRequest
from proto.hand_over import PinSequence, SequencePinned, TakenOver, TakeOver
from proto.roles import WorkerState
from proto.tokens import count_tokens, pack_tokens
from workers.engine.engine import Engine
from workers.engine.sequence import SequenceKv
from workers.engine.step import SequenceProgress
from workers.request_spec import sequence_name
from workers.roles.lender import Lender
from workers.roles.term import Term
from workers.served import Served, ServedTable

FREEZE_LIMIT_S = 30.0


class HandOverGiver:
    """Belongs to the event loop. The frontend of a request decides where it goes on.

    Args: `wait_s`: seconds that a sequence is frozen for a taker that is silent; `pause_s`: seconds that it
    is for one that has yet to come, where all is let go.
    """

    def __init__(
        self, term: Term, engine: Engine, lender: Lender, served: ServedTable, wait_s: float, pause_s: float
    ) -> None:
        self._term = term
        self._engine = engine
        self._lender = lender
        self._served = served
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._known: set[str] = set()  # to their takers, or to have stopped with the others once
        self._freezing: dict[str, asyncio.Future[bool]] = {}
        self._thawing: dict[str, asyncio.TimerHandle] = {}
        self._pins: dict[str, str] = {}
        served.on_drop(self._forget)

    def pin(self, ask: PinSequence) -> SequencePinned:
        """The answer may leave once the lender has shown what is pinned.

        Raises:
            InvalidRequest: no such attempt is served here.
        """
        kv = self._kv(ask)
        self._known.add(sequence_name(ask.request, ask.attempt))  # it goes on while it is read
        pinned = self._pin(ask, kv)
        return SequencePinned(pinned.pin, pinned.blocks)

    async def give(self, ask: TakeOver) -> TakenOver:
        """Freeze the sequence and say all that another worker needs to go on with it.

        Cancel: the sequence may be frozen, until it thaws.

        Raises:
            InvalidRequest: no such attempt is served here, or it ended before it could be frozen.
            DeadlineExceeded: the running step does not end.
        """
        name = sequence_name(ask.request, ask.attempt)
        served = self._find(ask)
        self._known.add(name)
        self._thaw_later(name, self._wait_s)
        self._stop_others()
        if not await self._freeze(name):
            raise InvalidRequest(field="attempt", reason="it has ended here")
        kv = self._kv(ask)
        generated = kv.tokens[count_tokens(served.request.prompt) + ask.offset :]
        self._lender.unpin(self._pins.get(name, ""))  # of an answer that was lost
        pinned = self._pin(ask, kv)
        self._pins[name] = pinned.pin
        await self._lender.show(pinned.pin)
        logprobs = served.stream.logprobs_from(ask.offset)
        return TakenOver(
            pinned.pin, pinned.blocks, pack_tokens(generated), kv.num_computed, served.prefilled(), logprobs
        )

    def hand_back(self, request: str, attempt: int) -> None:
        """The taker does not go on with it."""
        self._thaw(sequence_name(request, attempt))

    def note_step(self, events: list[SequenceProgress]) -> None:
        for event in events:
            if event.is_frozen:
                self._settle(event.sequence, True)

    @property
    def num_frozen(self) -> int:
        return len(self._thawing)

    def _find(self, ask: PinSequence | TakeOver) -> Served:
        served = self._served.find(sequence_name(ask.request, ask.attempt))
        if served is None:
            raise InvalidRequest(field="attempt", reason="it is not served here")
        if ask.first < 0 or not ask.ttl_s > 0:
            raise InvalidRequest(field="first", reason=f"block {ask.first} for {ask.ttl_s} s")
        return served

    def _kv(self, ask: PinSequence | TakeOver) -> SequenceKv:
        kv = self._engine.pin_sequence(self._find(ask).sequence, ask.first)
        if kv is None:
            raise InvalidRequest(field="attempt", reason="it has ended here")
        return kv

    def _pin(self, ask: PinSequence | TakeOver, kv: SequenceKv) -> Pinned:
        name = sequence_name(ask.request, ask.attempt)
        return self._lender.pin_blocks(ask.reader, kv.blocks, ask.ttl_s, name)

    def _stop_others(self) -> None:
        """If all is let go. What awaits its KV is not computed here, and goes on awaiting it."""
        if self._term.state is WorkerState.READY:
            return
        others = [served.sequence for served in self._served.all() if served.sequence not in self._known]
        self._known.update(others)
        for name in self._engine.freeze_computed(others):
            self._thaw_later(name, self._pause_s)

    async def _freeze(self, name: str) -> bool:
        """Whether it is frozen now; it may have ended first."""
        frozen = self._freezing.setdefault(name, asyncio.get_running_loop().create_future())
        if not self._engine.freeze(name):
            self._settle(name, False)
        try:
            async with asyncio.timeout(FREEZE_LIMIT_S):
                return await asyncio.shield(frozen)
        except TimeoutError:
            self._settle(name, False)
            self._thaw(name)
            raise DeadlineExceeded(what="the running step", limit_s=FREEZE_LIMIT_S) from None

    def _settle(self, name: str, is_frozen: bool) -> None:
        frozen = self._freezing.pop(name, None)
        if frozen is not None and not frozen.done():
            frozen.set_result(is_frozen)

    def _thaw_later(self, name: str, limit_s: float) -> None:
        """A taker that went silent has not taken anything."""
        timer = self._thawing.pop(name, None)
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._thawing[name] = loop.call_later(limit_s, self._thaw, name)

    def _thaw(self, name: str) -> None:
        timer = self._thawing.pop(name, None)
        if timer is not None:
            timer.cancel()
            self._engine.thaw(name)
            self._lender.unpin(self._pins.pop(name, ""))
            self._settle(name, False)

    def _forget(self, served: Served) -> None:
        """It has ended here: by itself, by its frontend's word, or at its deadline."""
        self._settle(served.sequence, False)
        self._pins.pop(served.sequence, None)
        self._known.discard(served.sequence)
        timer = self._thawing.pop(served.sequence, None)
        if timer is not None:
            timer.cancel()
