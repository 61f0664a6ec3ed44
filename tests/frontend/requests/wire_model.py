"""A model of workers, a router and a wire that loses, doubles, delays and reorders, for the stream machine.

Every worker answers a request with the same tokens, as a seed makes real ones do, and a record of each; what
it sends again, it sends a few tokens at a time. Some may want to let it go: then a successor's worker takes
the tokens over, at a moment of its own, and its source stands still. Faults are drawn from a hypothesis
`data` strategy while a budget lasts; after that the wire is sound, so every run must end right.
"""

import heapq
from collections.abc import Callable

from hypothesis import strategies as st

from frontend.requests.actions import (
    AcknowledgeEnd,
    Action,
    Actions,
    AskResend,
    CancelAttempt,
    CancelQueued,
    Route,
)
from frontend.requests.stream_state import StreamState
from proto.errors import DeadlineExceeded, GoElsewhere, NoResponder, UnknownModel, to_fault
from proto.logprobs import TokenLogprobs, pack_logprobs
from proto.requests import KvSource
from proto.streams import End, Frame, LiveOffset
from proto.tokens import pack_tokens

REQUEST = "r"
STEP_S = 0.05
BEAT_S = 1.0
RESENT = 5
WORKERS = ("w0", "w1", "w2", "w3", "w4", "w5")


class ModelAttempt:
    """What a worker knows of one attempt: its tokens are kept until the end is acknowledged."""

    def __init__(self, number: int, offset: int, source: KvSource | None) -> None:
        self.number = number
        self.source = source
        self.is_frozen = False
        self.base = offset
        self.offset = offset
        self.end: End | None = None
        self.is_acknowledged = False


class ModelWorker:
    def __init__(self, name: str, answer: list[int]) -> None:
        self.name = name
        self.answer = answer
        self.attempts: dict[int, ModelAttempt] = {}
        self.cancelled: set[int] = set()

    def accept(self, number: int, offset: int, source: KvSource | None) -> list[Frame]:
        if number in self.attempts or number in self.cancelled:
            return []
        self.attempts[number] = ModelAttempt(number, offset, source)
        return [Frame(REQUEST, number, offset)]

    def step(self, num_tokens: int) -> list[Frame]:
        frames = []
        for attempt in self.attempts.values():
            if attempt.end is None and attempt.source is None and not attempt.is_frozen:
                start, stop = attempt.offset, min(len(self.answer), attempt.offset + num_tokens)
                attempt.offset = stop
                attempt.end = End(finish="length") if stop == len(self.answer) else None
                frames.append(self._frame(attempt, start))
        return frames

    def freeze(self, number: int) -> ModelAttempt | None:
        attempt = self.attempts.get(number)
        if attempt is None or attempt.end is not None:
            return None
        attempt.is_frozen = True
        return attempt

    def take(self, attempt: ModelAttempt, offset: int) -> Frame:
        """All that its source had is this one's."""
        attempt.source, start = None, attempt.offset
        attempt.offset = max(start, offset)
        return self._frame(attempt, start)

    def resend(self, number: int, offset: int) -> Frame | None:
        attempt = self.attempts.get(number)
        return None if attempt is None else self._frame(attempt, offset, min(attempt.offset, offset + RESENT))

    def _frame(self, attempt: ModelAttempt, start: int, stop: int | None = None) -> Frame:
        tokens = self.answer[start : attempt.offset if stop is None else stop]
        end = attempt.end if start + len(tokens) == attempt.offset else None
        records = pack_logprobs([TokenLogprobs(-float(attempt.number), token) for token in tokens])
        return Frame(REQUEST, attempt.number, start, pack_tokens(tokens), end, logprobs=records)

    def cancel(self, number: int) -> None:
        self.cancelled.add(number)
        for attempt in self.attempts.values():
            if attempt.number <= number and attempt.end is None:
                attempt.end = End(finish="cancelled")

    def offsets(self) -> list[LiveOffset]:
        return [
            LiveOffset(REQUEST, attempt.number, attempt.offset, attempt.end is not None)
            for attempt in self.attempts.values()
            if not attempt.is_acknowledged
        ]


class ModelWire:
    """Carries out a machine's actions on model workers, and brings it what comes back, in a fault's order."""

    def __init__(
        self,
        data: st.DataObject,
        state: StreamState,
        answer: list[int],
        num_faults: int,
        *,
        has_leavers: bool = False,
    ) -> None:
        self.has_leavers = has_leavers
        self.data = data
        self.state = state
        self.workers = {name: ModelWorker(name, answer) for name in WORKERS}
        self.num_faults = num_faults
        self.num_deaths_left = 3
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def run(self, limit_s: float) -> None:
        """Until the machine has its outcome and every worker is at rest, or `limit_s` of the model's time."""
        self._do(self.state.start())
        self._later(STEP_S, self._step)
        self._later(BEAT_S, self._beat)
        while self._events and self.now < limit_s and not self.is_at_rest:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def call_at(self, delay_s: float, call: Callable[[], Actions]) -> None:
        self._later(delay_s, lambda: self._do(call()))

    @property
    def is_at_rest(self) -> bool:
        attempts = [attempt for worker in self.workers.values() for attempt in worker.attempts.values()]
        return self.state.outcome is not None and all(attempt.is_acknowledged for attempt in attempts)

    # Time.

    def _later(self, delay_s: float, event: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now + delay_s, self._serial, event))

    def _step(self) -> None:
        self._later(STEP_S, self._step)
        if self._fault("a worker dies") and self.num_deaths_left and len(self.workers) > 1:
            self._kill()
        if self.has_leavers:
            self._hand_over()
        for worker in list(self.workers.values()):
            for frame in worker.step(self._draw(1, 3)):
                self._send_frame(worker.name, frame)
        self._do(self.state.apply_tick(self.now))

    def _hand_over(self) -> None:
        """Who serves may want to be relieved; takers take over, or never hear from their source and go on
        from the tokens that they have. A source whose sequence nobody cancels goes on with it."""
        if self.state.worker in self.workers and self._draw_often():
            source = KvSource(self.state.worker, "life", self.state.attempt)
            self._deliver(lambda: self._do(self.state.apply_wish(source, self.now)))
        for worker in list(self.workers.values()):
            for attempt in list(worker.attempts.values()):
                if attempt.source is not None and attempt.end is None and self._draw_often():
                    self._take(worker, attempt, attempt.source)

    def _take(self, worker: ModelWorker, attempt: ModelAttempt, source: KvSource) -> None:
        giver = self.workers.get(source.worker)
        given = None if giver is None else giver.freeze(source.attempt)
        if given is not None:
            self._later(1.0, lambda: setattr(given, "is_frozen", False))
        is_lost = given is None or self._fault("the take-over's answer is lost")
        self._send_frame(worker.name, worker.take(attempt, 0 if is_lost or given is None else given.offset))

    def _draw_often(self) -> bool:
        return self.num_faults <= 0 or self.data.draw(st.booleans())

    def _beat(self) -> None:
        self._later(BEAT_S, self._beat)
        for worker in self.workers.values():
            for offset in worker.offsets():
                self._deliver(lambda name=worker.name, live=offset: self._take_offset(name, live))  # type: ignore[misc]

    def _kill(self) -> None:
        name = self.state.worker if self.state.worker in self.workers else sorted(self.workers)[0]
        del self.workers[name]
        self.num_deaths_left -= 1
        self._later(3.0, lambda: self._do(self.state.apply_lost(name, self.now)))

    # The wire.

    def _send_frame(self, worker: str, frame: Frame) -> None:
        self._deliver(lambda: self._do(self.state.apply_frame(worker, frame, self.now)))

    def _take_offset(self, worker: str, live: LiveOffset) -> None:
        self._do(self.state.apply_offset(worker, live, self.now))

    def _deliver(self, event: Callable[[], None]) -> None:
        if self._fault("lost"):
            return
        self._later(0.4 if self._fault("late") else 0.01, event)
        if self._fault("doubled"):
            self._later(0.3, event)

    def _fault(self, label: str) -> bool:
        if self.num_faults <= 0 or not self.data.draw(st.integers(0, 5).map(lambda n: n == 0), label=label):
            return False
        self.num_faults -= 1
        return True

    def _draw(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high)) if self.num_faults > 0 else low

    # What the machine asks.

    def _do(self, actions: Actions) -> None:
        for action in actions:
            self._later(0.005, lambda action=action: self._carry_out(action))  # type: ignore[misc]

    def _carry_out(self, action: Action) -> None:
        match action:
            case Route():
                self._route(action)
            case AskResend():
                self._resend(action)
            case CancelAttempt(worker=name, attempt=attempt):
                if name in self.workers and not self._fault("cancel lost"):
                    self.workers[name].cancel(attempt)
            case AcknowledgeEnd(worker=name, attempt=attempt):
                if name in self.workers and not self._fault("acknowledgement lost"):
                    self.workers[name].attempts[attempt].is_acknowledged = True
            case CancelQueued():
                raise AssertionError("nothing is queued here")

    def _route(self, route: Route) -> None:
        number = route.attempt
        if self._fault("the routers are silent"):
            silence = DeadlineExceeded(what="route", limit_s=1.0)
            self._later(1.0, lambda: self._fail_route(number, silence))
            return
        able = [name for name in self.workers if name not in route.exclude] or list(self.workers)
        name = able[self._draw(0, len(able) - 1)]
        if self._fault("it refuses"):
            refusal = GoElsewhere(worker=name, reason="draining")
            self._later(0.01, lambda: self._fail_route(number, refusal))
            return
        if not self._fault("it never hears of it"):
            for frame in self.workers[name].accept(number, route.offset, route.source):
                self._send_frame(name, frame)
        if self._fault("the router's answer is lost"):
            self._later(1.0, lambda: self._fail_route(number, DeadlineExceeded(what="route", limit_s=1.0)))
        else:
            self._later(0.01, lambda: self._do(self.state.apply_routed(number, name, self.now)))

    def _fail_route(self, number: int, error: DeadlineExceeded | GoElsewhere) -> None:
        self._do(self.state.apply_route_failed(number, error, self.now))

    def _resend(self, ask: AskResend) -> None:
        worker = self.workers.get(ask.worker)
        number = ask.attempt
        if worker is None:
            gone = NoResponder(subject=ask.worker)
            self._later(0.01, lambda: self._do(self.state.apply_resend_failed(number, gone, self.now)))
            return
        frame = worker.resend(number, ask.offset)
        if frame is None:
            unknown = UnknownModel(model="no such request")
            assert to_fault(unknown).retriable is False
            self._later(0.01, lambda: self._do(self.state.apply_resend_failed(number, unknown, self.now)))
        elif self._fault("the resend's answer is lost"):
            silence = DeadlineExceeded(what="resend", limit_s=1.0)
            self._later(1.0, lambda: self._do(self.state.apply_resend_failed(number, silence, self.now)))
        else:
            self._later(0.01, lambda: self._do(self.state.apply_resent(ask.worker, frame, self.now)))
