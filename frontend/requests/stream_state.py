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
an attempt only the next token is: repeated ones are skipped, later ones set aside while a resend is asked. A
worker that is to let the request go may have a `successor` issued: it becomes the current attempt once its
tokens reach as far as those that are here, or when the current one is lost.
The machine knows no clock and no bus: every call brings `now` and returns what is to be done.
"""

import math

from frontend.requests.actions import (
    AcknowledgeEnd,
    Actions,
    AskResend,
    CancelAttempt,
    CancelQueued,
    Route,
    answer_stray_frame,
    answer_stray_offset,
)
from frontend.requests.attempt import Attempt, Phase
from frontend.requests.stream_rules import StreamRules
from frontend.requests.successor import Successor, has_failed, reaches
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
from proto.logprobs import split_records
from proto.requests import KvSource
from proto.streams import End, Frame, LiveOffset, Prefilled
from proto.tokens import unpack_tokens

Outcome = End | KvmeshError

_FIRST_PAUSE_S = 0.02
_LAST_PAUSE_S = 1.0
_ASK_PAUSE_S = 0.3


class StreamState:
    """Belongs to one event loop; whoever calls a method carries out the actions that it returns.

    `records` has one for each token (`proto.logprobs`), empty unless log-probabilities were asked for: each
    as it came with its token, whatever later attempts would say.
    """

    def __init__(
        self, rules: StreamRules, *, max_tokens: int, stop_tokens: frozenset[int], limit_s: float, now: float
    ) -> None:
        self.tokens: list[int] = []
        self.records: list[bytes] = []
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
        self._current = Attempt(0, 0, Phase.PAUSED, math.inf)
        self._successor: Successor | None = None
        self._last_number = 0

    @property
    def attempt(self) -> int:
        return self._current.number

    @property
    def worker(self) -> str:
        """Who serves the current attempt; empty while that is unknown."""
        return self._current.worker

    def start(self) -> Actions:
        """Once; before, nothing is sent, and only the deadline or the client can end it."""
        return () if self.outcome is not None else self._issue()

    # What the router says.

    def apply_routed(self, attempt: int, worker: str, now: float) -> Actions:
        found = self._find(attempt)
        if found is None or (self.outcome is not None and found.phase is Phase.ROUTING):
            return (CancelAttempt(worker, attempt),)
        return found.apply_routed(worker, now + self._rules.accept_s)

    def apply_queued(self, attempt: int, router: str, wait_s: float, now: float) -> Actions:
        current = self._current
        if attempt != current.number or (self.outcome is not None and current.phase is Phase.ROUTING):
            self._forget_successor(attempt)
            return (CancelQueued(router, attempt),)
        if current.phase is Phase.ROUTING:
            current.phase, current.router = Phase.QUEUED, router
            current.due_at = now + max(self._rules.queued_s, 2 * wait_s)
        return ()

    def apply_route_failed(self, attempt: int, error: KvmeshError, now: float) -> Actions:
        """The routers refused, or none answered. A request that no worker had yet gets that as its answer."""
        current = self._current
        self._forget_successor(attempt)
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
        if self._successor is not None and frame.attempt == self._successor.attempt.number:
            return self._apply_frame_of_successor(self._successor, worker, frame, now)
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
        if self._successor is not None and live.attempt == self._successor.attempt.number:
            return self._apply_offset_of_successor(self._successor, worker, live, now)
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

    def apply_wish(self, source: KvSource, now: float) -> Actions:
        """The worker of an attempt asks to be relieved of it."""
        current = self._current
        if self.outcome is not None or source.attempt < current.number:
            return (CancelAttempt(source.worker, source.attempt),)
        is_served_there = current.phase is Phase.ACCEPTED and current.worker == source.worker
        if source.attempt != current.number or not is_served_there or self._successor is not None:
            return ()
        self._last_number += 1
        self._successor = Successor.issue(self._last_number, len(self.tokens), source, now)
        return self._successor.route(self._exclude)

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
        if self._successor is not None and self._successor.attempt.is_with(process):
            self._successor = None
        if current.is_with(process):
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
        if self._successor is not None and self._successor.is_overdue(now, self._rules.silence_s):
            return self._drop_successor()
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
        self._was_accepted = True
        return self._current.accept(worker, now)

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
            num_known = len(self.tokens) - frame.offset
            tokens = unpack_tokens(frame.tokens)
            records = split_records(frame.logprobs, len(tokens))
            if len(tokens) > num_known:
                self.tokens += tokens[num_known:]
                self.records += records[num_known:]
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
        behind = self._current.cancel()
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
        if self._successor is not None:
            self._current, self._successor = self._successor.attempt, None
            return ()
        self._last_number += 1
        self._current = Attempt(self._last_number, len(self.tokens), Phase.PAUSED, now + self._pause_s)
        is_first = self._pause_s == 0.0
        self._pause_s = min(_LAST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
        return self._issue() if is_first else ()

    def _shun(self, worker: str) -> None:
        if worker and worker not in self._exclude:
            self._exclude += (worker,)

    def _give_up(self, outcome: Outcome) -> Actions:
        return self._current.cancel() + self._end(outcome)

    def _end(self, outcome: Outcome) -> Actions:
        self.outcome = outcome
        self._ahead.clear()
        return self._drop_successor()

    # The successor.

    def _apply_frame_of_successor(
        self, successor: Successor, worker: str, frame: Frame, now: float
    ) -> Actions:
        heard = successor.hear(worker, now)
        if heard is None:
            return answer_stray_frame(worker, frame)
        if has_failed(frame):
            self._successor = None
            return (*heard, AcknowledgeEnd(worker, frame.attempt))
        if not reaches(frame, len(self.tokens)):
            return heard
        return heard + self._relieve(successor) + self._take(frame, now)

    def _apply_offset_of_successor(
        self, successor: Successor, worker: str, live: LiveOffset, now: float
    ) -> Actions:
        """One that is ahead has begun in frames that were lost; one that has ended behind us has failed."""
        heard = successor.hear(worker, now)
        if heard is None:
            return answer_stray_offset(worker, live)
        if live.offset > len(self.tokens):
            return heard + self._relieve(successor) + self._ask(now)
        if live.has_ended:
            self._successor = None
            return (*heard, AcknowledgeEnd(worker, live.attempt))
        return heard

    def _relieve(self, successor: Successor) -> Actions:
        behind = self._current.cancel()
        self._current, self._successor = successor.attempt, None
        self._ahead.clear()
        return behind

    def _forget_successor(self, attempt: int) -> None:
        """It never came to a worker; the current attempt goes on as if it had not been issued."""
        if self._successor is not None and self._successor.attempt.number == attempt:
            self._successor = None

    def _drop_successor(self) -> Actions:
        successor, self._successor = self._successor, None
        return () if successor is None else successor.attempt.cancel()

    def _find(self, number: int) -> Attempt | None:
        if self._successor is not None and self._successor.attempt.number == number:
            return self._successor.attempt
        return self._current if self._current.number == number else None
