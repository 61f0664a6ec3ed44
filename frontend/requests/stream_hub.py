"""The stream hub: every live request's state machine on the bus, fed from one subject.

One message of a worker carries the frames of all its requests, so the cost of a token is a look-up and a list
append; readers are woken once a message. Nothing here is per token.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

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
from frontend.requests.control_line import ControlLine
from frontend.requests.stream_rules import StreamRules
from frontend.requests.stream_state import StreamState
from frontend.requests.waker import Waker
from proto import subjects
from proto.codec import encode
from proto.errors import InternalFault, InvalidRequest, KvmeshError, Overloaded, from_fault
from proto.reports import AnyBeat, LoadReport
from proto.requests import ROUTE_REPLIES, GenerateRequest, KvSource, Queued, Refused, Routed, RouteReply
from proto.streams import STREAM_MESSAGES, End, LiveOffsets, PleaseMove, StepFrames
from proto.tokens import pack_tokens
from services.bus import Bus, Delivery
from services.liveness import Liveness
from services.metrics import FrontendMetrics
from services.tasks import open_tasks
from services.tracing import Tracing

log = logging.getLogger(__name__)

_INBOX_MESSAGES = 8192
_TURN_MESSAGES = 16


class HubRules(msgspec.Struct, frozen=True):
    """Units: seconds; `max_live` in requests."""

    stream: StreamRules
    route_s: float
    tick_s: float
    max_live: int


class LiveRequest:
    """A request between `StreamHub.begin` and `StreamHub.finish`: its machine, and who waits for it.

    `followers` are sent when its first token has come, or it has ended without one; not when it has failed,
    since then its reader gives them all up.
    """

    def __init__(self, request: GenerateRequest, state: StreamState, waker: Waker) -> None:
        self.request = request
        self.state = state
        self.waker = waker
        self.num_moves = 0
        self.followers: list[LiveRequest] = []

    def attempt(self, route: Route, now: float) -> GenerateRequest:
        """What the routers get for `route`: all tokens so far come along."""
        return msgspec.structs.replace(
            self.request,
            attempt=route.attempt,
            offset=route.offset,
            generated=pack_tokens(self.state.tokens),
            exclude=list(route.exclude),
            deadline_s=max(0.001, self.state.deadline_at - now),
            source=route.source,
        )


class StreamHub:
    """See `open_stream_hub`. Belongs to one event loop."""

    def __init__(
        self,
        bus: Bus,
        ns: str,
        rules: HubRules,
        tracing: Tracing,
        metrics: FrontendMetrics,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._bus = bus
        self._ns = ns
        self._rules = rules
        self._tracing = tracing
        self._metrics = metrics
        self._tasks = tasks
        self._line = ControlLine(bus, ns, tasks)
        self._live: dict[str, LiveRequest] = {}
        self._inbox: deque[bytes] = deque(maxlen=_INBOX_MESSAGES)  # beyond it, a resend heals
        self._has_mail = asyncio.Event()
        self._incarnations: dict[str, str] = {}

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def max_live(self) -> int:
        return self._rules.max_live

    def begin(
        self,
        request: GenerateRequest,
        stop_tokens: frozenset[int],
        waker: Waker,
        leader: LiveRequest | None = None,
    ) -> LiveRequest:
        """Sends `request` on its way; `waker` is woken when something of it comes.

        Behind a `leader` it is live from now on, and sent once that one's prompt has been read: it finds the
        prefix that they share in a cache.

        Raises:
            Overloaded: too many are live.
        """
        if len(self._live) >= self._rules.max_live:
            raise Overloaded(reason=f"{len(self._live)} requests are live in this frontend", retry_after_s=1)
        state = StreamState(
            self._rules.stream,
            max_tokens=request.stopping.max_tokens,
            stop_tokens=stop_tokens,
            limit_s=request.deadline_s,
            now=time.monotonic(),
        )
        live = LiveRequest(request, state, waker)
        self._live[request.request] = live
        if leader is None:
            self._perform(live, state.start())
        else:
            leader.followers.append(live)
        return live

    def finish(self, live: LiveRequest) -> None:
        """The reader wants no more: what still runs for the request is cancelled, wherever it is."""
        if self._live.pop(live.request.request, None) is not None:
            self._perform(live, live.state.cancel())

    def fail_all(self, error: KvmeshError) -> None:
        """Ends every live request with `error`, which its reader finds after the text so far."""
        for live in list(self._live.values()):
            self._apply(live, live.state.fail(error))

    def finish_all(self) -> None:
        for live in list(self._live.values()):
            self.finish(live)
        self._line.send_acknowledgements()

    # What comes in.

    def take(self, delivery: Delivery) -> None:
        self._inbox.append(delivery.payload)
        self._has_mail.set()

    async def read(self) -> None:
        """Applies what workers send. Without end."""
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            while self._inbox:
                # together, so that a reader is woken once for all of them, but not for ever
                for _ in range(min(len(self._inbox), _TURN_MESSAGES)):
                    self._apply_message(self._inbox.popleft())
                await asyncio.sleep(0)

    async def tick(self) -> None:
        """Applies the clock. Without end."""
        while True:
            await asyncio.sleep(self._rules.tick_s)
            now = time.monotonic()
            for live in list(self._live.values()):
                if actions := live.state.apply_tick(now):
                    self._perform(live, actions)
                self._wake_if_ended(live)
            self._line.send_acknowledgements()

    def apply_liveness(self, process: str, is_alive: bool) -> None:
        if not is_alive:
            self._lose(process)

    def apply_beat(self, process: str, beat: AnyBeat) -> None:
        """A worker's new incarnation has none of the old one's requests."""
        if isinstance(beat, LoadReport):
            known = self._incarnations.get(process)
            self._incarnations[process] = beat.incarnation
            if known is not None and known != beat.incarnation:
                self._lose(process)

    def _lose(self, process: str) -> None:
        self._incarnations.pop(process, None)
        now = time.monotonic()
        for live in list(self._live.values()):
            self._apply(live, live.state.apply_lost(process, now))

    def _apply_message(self, payload: bytes) -> None:
        try:
            message = STREAM_MESSAGES.decode(payload)
            match message:
                case StepFrames():
                    self._apply_frames(message)
                case LiveOffsets():
                    self._apply_offsets(message)
                case PleaseMove():
                    self._apply_wishes(message)
        except InvalidRequest as error:
            log.warning("a message of a stream cannot be read: %s", error)

    def _apply_frames(self, message: StepFrames) -> None:
        now, worker = time.monotonic(), message.worker
        for frame in message.frames:
            live = self._live.get(frame.request)
            if live is None:
                self._perform_stray(frame.request, answer_stray_frame(worker, frame))
                continue
            if actions := live.state.apply_frame(worker, frame, now):
                self._perform(live, actions)
            self._note_progress(live)

    def _apply_offsets(self, message: LiveOffsets) -> None:
        now, worker = time.monotonic(), message.worker
        for offset in message.offsets:
            live = self._live.get(offset.request)
            if live is None:
                self._perform_stray(offset.request, answer_stray_offset(worker, offset))
            else:
                self._apply(live, live.state.apply_offset(worker, offset, now))

    def _apply_wishes(self, message: PleaseMove) -> None:
        now, worker = time.monotonic(), message.worker
        for request, attempt in message.attempts:
            live = self._live.get(request)
            if live is None:
                self._perform_stray(request, (CancelAttempt(worker, attempt),))
            else:
                source = KvSource(worker, message.incarnation, attempt)
                self._apply(live, live.state.apply_wish(source, now))

    def _apply(self, live: LiveRequest, actions: Actions) -> None:
        self._perform(live, actions)
        self._wake_if_ended(live)

    def _wake_if_ended(self, live: LiveRequest) -> None:
        if live.state.outcome is not None:
            self._note_progress(live)

    def _note_progress(self, live: LiveRequest) -> None:
        live.waker.wake()
        if live.followers and (live.state.tokens or isinstance(live.state.outcome, End)):
            followers, live.followers = live.followers, []
            for follower in followers:
                self._perform(follower, follower.state.start())

    # What goes out.

    def _perform(self, live: LiveRequest, actions: Actions) -> None:
        request = live.request.request
        for action in actions:
            match action:
                case Route():
                    self._count_moves(live)
                    self._tasks.create_task(self._route(live, action), name=f"route {request}")
                case AskResend():
                    self._metrics.resends.inc()
                    self._tasks.create_task(self._ask_resend(live, action), name=f"resend {request}")
                case _:
                    self._perform_stray(request, (action,))

    def _perform_stray(self, request: str, actions: Actions) -> None:
        for action in actions:
            match action:
                case AcknowledgeEnd():
                    self._line.acknowledge(action.worker, request, action.attempt)
                case CancelAttempt():
                    self._line.cancel(
                        subjects.worker_control(self._ns, action.worker), request, action.attempt
                    )
                case CancelQueued():
                    self._line.cancel(
                        subjects.router_control(self._ns, action.router), request, action.attempt
                    )

    def _count_moves(self, live: LiveRequest) -> None:
        self._metrics.moves.inc(live.state.num_lost - live.num_moves)
        live.num_moves = live.state.num_lost

    async def _route(self, live: LiveRequest, route: Route) -> None:
        """Runs on when the client has left, so that what the router answers can be cancelled."""
        request = live.attempt(route, time.monotonic())
        limit_s = min(self._rules.route_s, request.deadline_s)
        try:
            payload = encode(request, self._bus.max_payload_bytes)
            headers = self._tracing.inject({})
            subject = subjects.route(self._ns, request.model)
            answer = await self._bus.request(subject, payload, limit_s, headers)
            reply = _read_reply(answer)
        except KvmeshError as error:
            self._apply(live, live.state.apply_route_failed(route.attempt, error, time.monotonic()))
        else:
            self._apply(live, _apply_reply(live.state, route.attempt, reply))

    async def _ask_resend(self, live: LiveRequest, ask: AskResend) -> None:
        try:
            frame = await self._line.resend(ask.worker, live.request.request, ask.attempt, ask.offset)
        except KvmeshError as error:
            actions = live.state.apply_resend_failed(ask.attempt, error, time.monotonic())
        else:
            actions = live.state.apply_resent(ask.worker, frame, time.monotonic())
            self._note_progress(live)
        self._apply(live, actions)


def _read_reply(answer: bytes) -> RouteReply:
    """An answer that cannot be read is our bug, whatever it says of the bytes."""
    try:
        return ROUTE_REPLIES.decode(answer)
    except InvalidRequest as error:
        raise InternalFault(reason=f"a router's answer cannot be read: {error}") from error


def _apply_reply(state: StreamState, attempt: int, reply: RouteReply) -> Actions:
    now = time.monotonic()
    match reply:
        case Routed(decision=decision):
            return state.apply_routed(attempt, decision.worker, now)
        case Queued(router=router, wait_s=wait_s):
            return state.apply_queued(attempt, router, wait_s, now)
        case Refused(fault=fault):
            return state.apply_route_failed(attempt, from_fault(fault), now)


@asynccontextmanager
async def open_stream_hub(
    bus: Bus,
    ns: str,
    client: str,
    *,
    liveness: Liveness[AnyBeat],
    rules: HubRules,
    tracing: Tracing,
    metrics: FrontendMetrics,
) -> AsyncIterator[StreamHub]:
    """A hub that hears `client`'s stream subject for the time of the body.

    At its end every request that is left is cancelled, and workers have a second to hear of it.

    Raises:
        Disconnected, DeadlineExceeded: as `Bus.subscribe`.
    """
    async with open_tasks() as tasks:
        hub = StreamHub(bus, ns, rules, tracing, metrics, tasks)
        metrics.streams.set_function(lambda: hub.num_live)
        liveness.on_change(hub.apply_liveness)
        liveness.on_beat(hub.apply_beat)
        subscription = await bus.subscribe(subjects.stream(ns, client), hub.take)
        companions = [
            tasks.create_task(hub.read(), name="stream reader"),
            tasks.create_task(hub.tick(), name="stream clock"),
        ]
        try:
            yield hub
        finally:
            for companion in companions:
                companion.cancel()
            hub.finish_all()
            await subscription.close()
