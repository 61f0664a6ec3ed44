"""Where requests come in: each is checked, hashed, and sent on, queued or refused, in a task of its own."""

import asyncio
import logging
import time
from collections.abc import Coroutine

from proto import keys
from proto.cards import ModelCard
from proto.codec import decode, encode
from proto.control import (
    CONTROL_REQUESTS,
    Admitted,
    AskAdmitted,
    Cancel,
    ControlReply,
    Done,
    ExplainRoute,
)
from proto.errors import (
    InternalFault,
    InvalidRequest,
    KvmeshError,
    Overloaded,
    PromptTooLong,
    UnknownModel,
    to_fault,
)
from proto.requests import GenerateRequest, Queued, Refused, Routed, RouteReply
from proto.tokens import TOKEN_BYTES, count_tokens
from router.forwarding import Forwarder, Pending
from router.hashed_prompt import hash_prompt
from router.settings import RouterSettings
from router.waiting_room import Wish
from router.waitlist import Waitlist
from router.workers_view import WorkersView
from services.bus import Delivery
from services.directory import Directory
from services.logs import logging_request
from services.metrics import RouterMetrics
from services.tracing import Tracing

log = logging.getLogger(__name__)

RETRY_S = 1.0


class Intake:
    """Belongs to one event loop. `tasks` owns what it starts, and outlives its subscriptions."""

    def __init__(
        self,
        settings: RouterSettings,
        directory: Directory,
        view: WorkersView,
        forwarder: Forwarder,
        waitlist: Waitlist,
        metrics: RouterMetrics,
        tracing: Tracing,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._view = view
        self._forwarder = forwarder
        self._waitlist = waitlist
        self._metrics = metrics
        self._tracing = tracing
        self._tasks = tasks
        self._num_open = 0
        metrics.running.set_function(lambda: self._num_open)

    def take_route(self, delivery: Delivery) -> None:
        """Handles the `route` subjects."""
        if self._num_open < self._settings.open_limit:
            self._num_open += 1
            self._start(self._answer_route(delivery), "route")
        else:
            error = Overloaded(reason="the router has all the requests it takes", retry_after_s=RETRY_S)
            self._start(self._respond(delivery, self._refusal(error)), "route-refusal")

    def take_control(self, delivery: Delivery) -> None:
        """Handles the router's own control subject."""
        self._start(self._answer_control(delivery), "control")

    def _start(self, work: Coroutine[object, object, None], name: str) -> None:
        self._tasks.create_task(work, name=name)

    async def _answer_route(self, delivery: Delivery) -> None:
        try:
            if not delivery.is_expired:
                await self._respond(delivery, await self._route(delivery))
        finally:
            self._num_open -= 1

    async def _answer_control(self, delivery: Delivery) -> None:
        reply: ControlReply = Done()
        try:
            ask = CONTROL_REQUESTS.decode(delivery.payload)
            if isinstance(ask, Cancel):
                await self._waitlist.cancel(ask.request, ask.attempt)
            elif isinstance(ask, ExplainRoute):
                reply = self._forwarder.explain(await self._admit(ask.request), ask.limit)
            elif isinstance(ask, AskAdmitted):
                reply = Admitted(self._view.is_admitted(ask.worker, ask.incarnation))
            else:
                raise InvalidRequest(field="control", reason=f"a router takes no {type(ask).__name__}")
        except KvmeshError as error:
            reply = Refused(to_fault(error))
        await self._respond(delivery, reply)

    async def _respond(self, delivery: Delivery, reply: RouteReply | ControlReply) -> None:
        try:
            await delivery.respond(encode(reply))
        except KvmeshError as error:
            log.info("an answer did not reach its asker: %s", error)

    async def _route(self, delivery: Delivery) -> RouteReply:
        """Never raises: a refusal is an answer."""
        try:
            request = decode(delivery.payload, GenerateRequest)
            parent = self._tracing.extract(delivery.headers)
            with logging_request(request.request), self._tracing.span("route", parent):
                reply = await self._place(request)
        except KvmeshError as error:
            return self._refusal(error)
        except Exception as error:  # the border: one request's bug must not end the others
            log.exception("routing failed")
            return self._refusal(InternalFault(reason=type(error).__name__))
        self._metrics.decided("queued" if isinstance(reply, Queued) else "sent")
        return reply

    def _refusal(self, error: KvmeshError) -> Refused:
        self._metrics.decided(error.code)
        return Refused(to_fault(error))

    async def _place(self, request: GenerateRequest) -> Routed | Queued:
        """Sends the request to a worker, or lets it wait.

        Raises:
            KvmeshError: the refusal.
        """
        pending = await self._admit(request)
        if request.source is not None:
            return await self._hand_over(pending)
        if not self._waitlist.has_line(request.model):
            reservation = self._forwarder.try_reserve(pending, request.exclude)
            self._metrics.decision_s.observe(time.monotonic() - pending.arrived_s)
            if reservation is not None:
                routed = await self._forwarder.try_forward(pending, reservation)
                if routed is not None:
                    return routed
        return self._waitlist.put(pending)

    async def _hand_over(self, pending: Pending) -> Routed:
        """Who asks is served already: it goes to a worker with room, or stays where it is.

        Raises:
            KvmeshError: the refusal.
        """
        reservation = self._forwarder.try_reserve(pending, pending.request.exclude)
        routed = None if reservation is None else await self._forwarder.try_forward(pending, reservation)
        if routed is None:
            raise Overloaded(reason="no other worker has room for it", retry_after_s=RETRY_S)
        return routed

    async def _admit(self, request: GenerateRequest) -> Pending:
        """The request with its model and its hashes, when it can be served at all.

        Where there is a line that it could not join, the work of hashing is spared.
        """
        arrived_s = time.monotonic()
        model = await self._find_model(request.model)
        _check_prompt(request, model)
        if self._waitlist.has_line(model.name) and request.source is None:
            self._waitlist.check(model, Wish(request.priority, arrived_s, arrived_s + request.deadline_s))
        return Pending(
            request=request,
            model=model,
            prompt=await hash_prompt(request, model.kv_class),
            headers=self._tracing.inject({}),
            arrived_s=arrived_s,
            until_s=arrived_s + request.deadline_s,
        )

    async def _find_model(self, name: str) -> ModelCard:
        """The model's card; the directory is asked for one that its watch has not brought.

        Raises:
            UnknownModel: there is none.
            Disconnected, DeadlineExceeded: that cannot be said now.
        """
        card = self._view.model(name)
        if card is not None:
            return card
        entry = await self._directory.get(keys.model(self._settings.mesh.ns, name))
        if entry is None:
            raise UnknownModel(model=name)
        card = decode(entry.value, ModelCard)
        self._view.put_model(card)
        return card


def _check_prompt(request: GenerateRequest, model: ModelCard) -> None:
    if not request.prompt or len(request.prompt) % TOKEN_BYTES or len(request.generated) % TOKEN_BYTES:
        raise InvalidRequest(field="prompt", reason="one or more token ids of four bytes each are needed")
    num_tokens = count_tokens(request.prompt) + count_tokens(request.generated)
    if num_tokens > model.context_tokens:
        raise PromptTooLong(field="prompt", num_tokens=num_tokens, limit_tokens=model.context_tokens)
