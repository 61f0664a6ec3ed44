"""One request as its frontend sees it: a pure machine of attempts and offsets that ends exactly once.

```
            routed                first frame               end
 ROUTING ───────────► SENT ───────────────────► ACCEPTED ─────────► (outcome)
  ▲  │ queued          │ no frame in time         │ worker lost, resend refused,
  │  └─────► QUEUED ───┤ (frames may come from    │ retriable fault
  │            │       │  any of these phases)    │
  └── PAUSED ◄─┴───────┴──────────────────────────┘      next attempt, at the tokens so far
```

Every attempt begins at the tokens that are already here, so nothing of an older attempt is ever taken. Within
an attempt only the next token is: repeated ones are skipped, later ones set aside while a resend is asked.
The machine knows no clock and no bus: every call brings `now` and returns what is to be done.
"""

from enum import Enum, auto

import msgspec

from frontend.requests.actions import (
    AcknowledgeEnd,
    Action,
    Actions,
    AskResend,
    CancelAttempt,
    CancelQueued,
    Route,
    answer_stray_frame,
    answer_stray_offset,
)
from proto.errors import (
    DeadlineExceeded,
    Disconnected,
    GoElsewhere,
    KvmeshError,
    NoResponder,
    NoWorker,
    WorkerLost,
    from_fault,
)
from proto.streams import End, Frame, LiveOffset, Prefilled
from proto.tokens import unpack_tokens


class StreamRules(msgspec.Struct, frozen=True):
    """The bounds of every wait. Units: seconds, but for `max_lost`, in workers."""

    accept_s: float
    queued_s: float
    silence_s: float
    resend_s: float
    outage_s: float
    reroute_s: float
    max_lost: int


class Phase(Enum):
    PAUSED = auto()
    ROUTING = auto()
    QUEUED = auto()
    SENT = auto()
    ACCEPTED = auto()


class Attempt(msgspec.Struct):
    """The attempt that counts. `due_at` ends the wait of its phase; an empty name is one not known yet."""

    number: int
    base: int
    phase: Phase
    due_at: float
    worker: str = ""
    router: str = ""
    heard_at: float = 0.0
    is_asking: bool = False
    wants_resend: bool = False
    ask_at: float = 0.0
    failing_since: float | None = None


Outcome = End | KvmeshError

_FIRST_PAUSE_S = 0.02
_LAST_PAUSE_S = 1.0
_ASK_PAUSE_S = 0.3


class StreamState:
    """Belongs to one event loop; whoever calls a method carries out the actions that it returns."""

    def __init__(
        self, rules: StreamRules, *, max_tokens: int, stop_tokens: frozenset[int], limit_s: float, now: float
    ) -> None:
        self.tokens: list[int] = []
        self.outcome: Outcome | None = None
        self.prefilled: Prefilled | None = None
        self.num_lost = 0
        self._rules = rules
        self._max_tokens = max_tokens
        self._stop_tokens = stop_tokens
        self._limit_s = limit_s
        self.deadline_at = now + limit_s
        self._ahead: dict[int, Frame] = {}
        self._exclude: tuple[str, ...] = ()
        self._trouble_since: float | None = None
        self._pause_s = 0.0
        self._was_accepted = False
        self._current = Attempt(0, 0, Phase.PAUSED, now)

    @property
    def attempt(self) -> int:
        return self._current.number

    @property
    def worker(self) -> str:
        """Who serves the current attempt; empty while that is unknown."""
        return self._current.worker

    def start(self) -> Actions:
        return self._issue()

    # What the router says.

    def apply_routed(self, attempt: int, worker: str, now: float) -> Actions:
        current = self._current
        if attempt != current.number or (self.outcome is not None and current.phase is Phase.ROUTING):
            return (CancelAttempt(worker, attempt),)
        if current.phase is Phase.ROUTING:
            current.phase, current.worker = Phase.SENT, worker
            current.due_at = now + self._rules.accept_s
            return ()
        return () if current.worker == worker else (CancelAttempt(worker, attempt),)

    def apply_queued(self, attempt: int, router: str, wait_s: float, now: float) -> Actions:
        current = self._current
        if attempt != current.number or (self.outcome is not None and current.phase is Phase.ROUTING):
            return (CancelQueued(router, attempt),)
        if current.phase is Phase.ROUTING:
            current.phase, current.router = Phase.QUEUED, router
            current.due_at = now + max(self._rules.queued_s, 2 * wait_s)
        return ()

    def apply_route_failed(self, attempt: int, error: KvmeshError, now: float) -> Actions:
        """The routers refused, or none answered. A request that no worker had yet gets that as its answer."""
        current = self._current
        if self.outcome is not None or attempt != current.number or current.phase is not Phase.ROUTING:
            return ()
        is_news = not self._was_accepted and not isinstance(error, GoElsewhere | DeadlineExceeded)
        if not error.retriable or (is_news and self._trouble_since is None):
            return self._end(error)
        if isinstance(error, NoWorker):
            self._exclude = ()  # better one that was left out before than none
        return self._move(error, now)

    # What workers say.

    def apply_frame(self, worker: str, frame: Frame, now: float) -> Actions:
        current = self._current
        if self.outcome is not None or frame.attempt != current.number:
            return answer_stray_frame(worker, frame)
        if current.worker != worker or current.phase is not Phase.ACCEPTED:
            if current.phase is Phase.ACCEPTED:
                return answer_stray_frame(worker, frame)
            return self._accept(worker, now) + self._take(frame, now)
        current.heard_at = now
        return self._take(frame, now)

    def apply_offset(self, worker: str, live: LiveOffset, now: float) -> Actions:
        current = self._current
        if self.outcome is not None or live.attempt != current.number:
            return answer_stray_offset(worker, live)
        if current.phase is not Phase.ACCEPTED:
            actions = self._accept(worker, now)
        elif current.worker == worker:
            actions = ()
        else:
            return answer_stray_offset(worker, live)
        current.heard_at = now
        if live.offset > len(self.tokens) or live.has_ended:
            actions += self._ask(now)
        return actions

    def apply_resent(self, worker: str, frame: Frame, now: float) -> Actions:
        current = self._current
        if frame.attempt == current.number:
            current.is_asking = current.wants_resend = False
            current.failing_since = None
            current.ask_at = now + _ASK_PAUSE_S
        return self.apply_frame(worker, frame, now)

    def apply_resend_failed(self, attempt: int, error: KvmeshError, now: float) -> Actions:
        """A worker that answers with a refusal has lost the request; silence is borne for a bound."""
        current = self._current
        if self.outcome is not None or attempt != current.number:
            return ()
        current.is_asking, current.wants_resend = False, True
        current.ask_at = now + _ASK_PAUSE_S
        if current.failing_since is None:
            current.failing_since = now
        failing_s = now - current.failing_since
        if isinstance(error, Disconnected):
            return self._end(error) if failing_s >= self._rules.outage_s else ()
        if isinstance(error, NoResponder | DeadlineExceeded) and failing_s < self._rules.resend_s:
            return ()
        return self._lose(now)

    def apply_lost(self, process: str, now: float) -> Actions:
        """A process has stopped beating."""
        current = self._current
        if self.outcome is not None:
            return ()
        if current.worker == process and current.phase in (Phase.SENT, Phase.ACCEPTED):
            return self._lose(now)
        if current.router == process and current.phase is Phase.QUEUED:
            return self._move(Disconnected(peer=f"router {process}"), now)
        return ()

    # What the clock and the client say.

    def apply_tick(self, now: float) -> Actions:
        """Some time has passed: called several times a second."""
        current, phase = self._current, self._current.phase
        if self.outcome is not None:
            return ()
        if now >= self.deadline_at:
            return self._give_up(DeadlineExceeded(what="the request", limit_s=self._limit_s))
        if phase is Phase.ACCEPTED:
            if current.wants_resend or now - current.heard_at >= self._rules.silence_s:
                return self._ask(now)
        elif phase is Phase.PAUSED and now >= current.due_at:
            return self._issue()
        elif phase in (Phase.QUEUED, Phase.SENT) and now >= current.due_at:
            return self._move(DeadlineExceeded(what="acceptance", limit_s=self._rules.accept_s), now)
        return ()

    def cancel(self) -> Actions:
        """The client is gone, or has all that it wants. The outcome, if there is none yet: cancelled."""
        return () if self.outcome is not None else self._give_up(End(finish="cancelled"))

    def fail(self, error: KvmeshError) -> Actions:
        """This frontend cannot go on with it."""
        return () if self.outcome is not None else self._give_up(error)

    # Steps.

    def _issue(self) -> Actions:
        self._current.phase = Phase.ROUTING
        return (Route(self._current.number, len(self.tokens), self._exclude),)

    def _accept(self, worker: str, now: float) -> Actions:
        """Binds the attempt to the first worker that shows work on it; another one named is cancelled."""
        current = self._current
        named = current.worker
        current.phase, current.worker, current.heard_at = Phase.ACCEPTED, worker, now
        self._was_accepted = True
        if named and named != worker:
            return (CancelAttempt(named, current.number),)
        return ()

    def _take(self, frame: Frame, now: float) -> Actions:
        if frame.offset > len(self.tokens):
            self._ahead[frame.offset] = frame
            return self._ask(now)
        end = self._append(frame)
        while self._ahead and end is None:
            reachable = [offset for offset in self._ahead if offset <= len(self.tokens)]
            if not reachable:
                return self._ask(now)
            end = self._append(self._ahead.pop(min(reachable)))
        return () if end is None else self._take_end(end, now)

    def _append(self, frame: Frame) -> End | None:
        if self.prefilled is None:
            self.prefilled = self._prefilled_by(frame)
        if frame.tokens:
            new = unpack_tokens(frame.tokens)[len(self.tokens) - frame.offset :]
            if new:
                self.tokens += new
                self._trouble_since, self._pause_s = None, 0.0
                if not self._ahead:
                    self._current.wants_resend = False
        return frame.end

    def _prefilled_by(self, frame: Frame) -> Prefilled | None:
        """What is known of the attempt that read the prompt; what later ones found of their replay is not.
        Workers of an earlier version say it at the end alone."""
        if self._current.base != 0:
            return None
        end = frame.end
        if frame.prefilled is None and end is not None and end.fault is None:
            return Prefilled(end.cached_tokens, end.prefill, end.prefill_worker)
        return frame.prefilled

    def _take_end(self, end: End, now: float) -> Actions:
        current = self._current
        done: Actions = (AcknowledgeEnd(current.worker, current.number),)
        fault = from_fault(end.fault) if end.fault is not None else None
        if fault is None and end.finish in ("stop", "length"):
            return done + self._end(end)
        if fault is not None and (not fault.retriable or isinstance(fault, DeadlineExceeded)):
            return done + self._end(fault)
        elsewhere = fault or GoElsewhere(worker=current.worker, reason="it cancelled the request")
        self._shun(current.worker)
        return done + self._advance(elsewhere, now)

    def _ask(self, now: float) -> Actions:
        current = self._current
        current.wants_resend = True
        if current.is_asking or now < current.ask_at:
            return ()
        current.is_asking = True
        return (AskResend(current.worker, current.number, len(self.tokens)),)

    def _lose(self, now: float) -> Actions:
        self.num_lost += 1
        return self._move(WorkerLost(num_lost=self.num_lost), now)

    def _move(self, reason: KvmeshError, now: float) -> Actions:
        """Leaves the current attempt behind: cancels it where it is known to be, and goes on elsewhere."""
        behind = self._cancel_current()
        self._shun(self._current.worker)
        return behind + self._advance(reason, now)

    def _advance(self, reason: KvmeshError, now: float) -> Actions:
        if len(self.tokens) >= self._max_tokens:
            return self._end(End(finish="length"))
        if self.tokens and self.tokens[-1] in self._stop_tokens:
            return self._end(End(finish="stop"))
        if self._trouble_since is None:
            self._trouble_since = now
        if self.num_lost > self._rules.max_lost or now - self._trouble_since >= self._rules.reroute_s:
            return self._end(WorkerLost(num_lost=self.num_lost) if self.num_lost else reason)
        self._ahead.clear()
        number, base = self._current.number + 1, len(self.tokens)
        self._current = Attempt(number, base, Phase.PAUSED, now + self._pause_s)
        is_first = self._pause_s == 0.0
        self._pause_s = min(_LAST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
        return self._issue() if is_first else ()

    def _shun(self, worker: str) -> None:
        if worker and worker not in self._exclude:
            self._exclude += (worker,)

    def _give_up(self, outcome: Outcome) -> Actions:
        return self._cancel_current() + self._end(outcome)

    def _end(self, outcome: Outcome) -> Actions:
        self.outcome = outcome
        self._ahead.clear()
        return ()

    def _cancel_current(self) -> Actions:
        """Empty while the choice is not known: then the router's reply or the first frame is answered so."""
        current = self._current
        found: Action
        if current.phase is Phase.QUEUED:
            found = CancelQueued(current.router, current.number)
        elif current.phase in (Phase.SENT, Phase.ACCEPTED):
            found = CancelAttempt(current.worker, current.number)
        else:
            return ()
        return (found,)
