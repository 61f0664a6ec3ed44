"""The door of a worker: all that comes in on its subjects, answered in order by one task."""

import asyncio
import logging
import math
from collections.abc import Coroutine

from proto import control
from proto.codec import decode, encode
from proto.control import CONTROL_REQUESTS, ControlReply, ControlRequest
from proto.errors import InternalFault, InvalidRequest, KvmeshError, Overloaded, to_fault
from proto.hand_over import Drain, HandBack, PinSequence, SequencePinned, TakeOver, Undrain
from proto.requests import Accepted, GenerateReply, Refused, RoutedRequest
from proto.roles import AskRole, SwitchRole, TakeBackRole
from services.bus import Delivery
from services.tracing import Tracing
from workers.decode_desk import DecodeDesk
from workers.engine.simulated_model import SimulatedTime
from workers.event_publisher import EventPublisher
from workers.long_prompt import LONG_BYTES
from workers.outbox import Outbox
from workers.prefill_desk import PrefillDesk
from workers.roles.drainer import Drainer
from workers.roles.hand_over_giver import HandOverGiver
from workers.roles.held_grants import HeldGrants
from workers.roles.lender import Lender
from workers.roles.role_switch import RoleSwitch
from workers.roles.term import Term

MAX_WAITING = 10_000
MAX_LONG = 1000

log = logging.getLogger(__name__)


class WorkerDoor:
    """What comes in on `generate` and `control`. Handlers only enqueue; `run` answers."""

    def __init__(
        self,
        term: Term,
        decode_desk: DecodeDesk,
        giver: HandOverGiver,
        drainer: Drainer,
        role_switch: RoleSwitch,
        prefill_desk: PrefillDesk,
        outbox: Outbox,
        lender: Lender,
        held: HeldGrants,
        publisher: EventPublisher,
        time: SimulatedTime | None,
        tracing: Tracing,
    ) -> None:
        self._term = term
        self._decode_desk = decode_desk
        self._giver = giver
        self._drainer = drainer
        self._role_switch = role_switch
        self._prefill_desk = prefill_desk
        self._outbox = outbox
        self._lender = lender
        self._held = held
        self._publisher = publisher
        self._time = time
        self._tracing = tracing
        self._waiting: asyncio.Queue[tuple[bool, Delivery]] = asyncio.Queue(MAX_WAITING)
        self._num_long = 0

    def on_generate(self, delivery: Delivery) -> None:
        self._enqueue(True, delivery)

    def on_control(self, delivery: Delivery) -> None:
        self._enqueue(False, delivery)

    def _enqueue(self, is_generate: bool, delivery: Delivery) -> None:
        """A full door drops: whoever asks has a deadline, and asks elsewhere."""
        try:
            self._waiting.put_nowait((is_generate, delivery))
        except asyncio.QueueFull:
            log.error("the door is full; a message was dropped")

    async def run(self) -> None:
        """Answer, one after the other, for ever; what takes a while is answered beside the others."""
        async with asyncio.TaskGroup() as group:
            while True:
                is_generate, delivery = await self._waiting.get()
                if not is_generate:
                    await self._take_control(delivery, group)
                elif not delivery.is_expired:  # else its router has sent it elsewhere by now
                    await self._take_generate(delivery, group)

    async def _take_generate(self, delivery: Delivery, group: asyncio.TaskGroup) -> None:
        """A long request is read beside the others."""
        if len(delivery.payload) < LONG_BYTES:
            await self._answer_generate(delivery)
        elif self._num_long < MAX_LONG:
            self._num_long += 1
            task = group.create_task(self._answer_generate(delivery), name="take a long request")
            task.add_done_callback(self._forget_long)
        else:
            error = Overloaded(reason=f"{MAX_LONG} long requests are being read", retry_after_s=1)
            await self._respond(delivery, Refused(to_fault(error)))

    def _forget_long(self, _: asyncio.Task[None]) -> None:
        self._num_long -= 1

    async def _take_control(self, delivery: Delivery, group: asyncio.TaskGroup) -> None:
        """What ends work is never too late."""
        try:
            request = CONTROL_REQUESTS.decode(delivery.payload)
        except KvmeshError as error:
            await self._respond(delivery, Refused(to_fault(error)))
            return
        lasting = self._begin(request)
        if lasting is None:
            await self._respond(delivery, self._answer_control(request))
        else:
            group.create_task(self._answer_later(delivery, lasting), name=f"answer {type(request).__name__}")

    async def _respond(self, delivery: Delivery, reply: GenerateReply | ControlReply) -> None:
        try:
            await delivery.respond(encode(reply))
        except KvmeshError as error:
            log.info("an answer was not sent", extra={"reason": str(error)})

    async def _answer_generate(self, delivery: Delivery) -> None:
        await self._respond(delivery, await self._accept(delivery))

    async def _accept(self, delivery: Delivery) -> GenerateReply:
        try:
            routed = decode(delivery.payload, RoutedRequest)
            with self._tracing.span("accept", self._tracing.extract(delivery.headers)):
                await self._decode_desk.accept(routed)
        except KvmeshError as error:
            return Refused(to_fault(error))
        except Exception as error:
            log.exception("a request could not be taken")
            return Refused(to_fault(InternalFault(reason=type(error).__name__)))
        return Accepted(self._term.worker)

    async def _answer_later(self, delivery: Delivery, lasting: Coroutine[None, None, ControlReply]) -> None:
        reply: ControlReply
        try:
            reply = await lasting
        except KvmeshError as error:
            reply = Refused(to_fault(error))
        except Exception as error:
            log.exception("a question could not be answered")
            reply = Refused(to_fault(InternalFault(reason=type(error).__name__)))
        await self._respond(delivery, reply)

    def _answer_control(self, request: ControlRequest) -> ControlReply:
        try:
            return self._serve(request)
        except KvmeshError as error:
            return Refused(to_fault(error))
        except Exception as error:
            log.exception("a question could not be answered")
            return Refused(to_fault(InternalFault(reason=type(error).__name__)))

    def _begin(self, request: ControlRequest) -> Coroutine[None, None, ControlReply] | None:
        """What is waited for; None for all that is answered at once."""
        match request:
            case control.Pin():
                return self._pin(request)
            case PinSequence():
                return self._pin_sequence(request)
            case TakeOver():
                return self._giver.give(request)
            case Drain():
                return self._drainer.drain(request)
            case Undrain():
                return self._drainer.undrain()
            case SwitchRole():
                return self._role_switch.order(request)
            case TakeBackRole():
                return self._role_switch.take_back()
        return None

    async def _pin(self, ask: control.Pin) -> control.Pinned:
        pinned = self._lender.pin(ask)
        await self._lender.show(pinned.pin)
        return pinned

    async def _pin_sequence(self, ask: PinSequence) -> SequencePinned:
        pinned = self._giver.pin(ask)
        await self._lender.show(pinned.pin)
        return pinned

    def _serve(self, request: ControlRequest) -> ControlReply:
        match request:
            case control.Resend(name, attempt, offset):
                return control.Resent(self._outbox.resend(name, attempt, offset))
            case control.TakeJob(job, epoch):
                return control.JobTaken(self._prefill_desk.take(job, epoch or None))
            case control.AskGrant():
                return self._lender.grant(request)
            case control.AskHolding(grants):
                return control.Holding(self._term.incarnation, self._held.among(grants))
            case control.Unpin(pin):
                return self._lender.unpin(pin)
            case AskRole():
                return self._role_switch.progress()
            case control.TakeSnapshot(page, number):
                return control.Snapshot(self._publisher.snapshot(page, number))
            case control.AskHoldings():
                return self._lender.holdings(self._held.all())
            case _:
                self._do(request)
                return control.Done()

    def _do(self, request: ControlRequest) -> None:
        """
        Raises:
            InvalidRequest: it is meant for another kind of process.
        """
        match request:
            case control.Cancel(name, attempt):
                self._decode_desk.cancel(name, attempt)
            case control.Acknowledge(ends):
                for name, attempt in ends:
                    self._outbox.drop_ended(name, attempt)
            case control.CancelJob(job_id):
                self._prefill_desk.cancel(job_id)
            case control.Release(grant):
                self._lender.end_grant(grant, "its holder gave it back")
            case control.GiveUp(job_id, reason):
                self._lender.give_up(job_id, reason)
            case HandBack(name, attempt):
                self._giver.hand_back(name, attempt)
            case control.SetSlowness(slowness):
                self._set_slowness(slowness)
            case _:
                raise InvalidRequest(field="type", reason=f"{type(request).__name__} is not for a worker")

    def _set_slowness(self, slowness: float) -> None:
        """
        Raises:
            InvalidRequest: no such factor, or the time here is real.
        """
        if self._time is None:
            raise InvalidRequest(field="slowness", reason="this worker computes, in real time")
        if not 0 < slowness < math.inf:
            raise InvalidRequest(field="slowness", reason=f"{slowness} is no factor of time")
        self._time.slowness = slowness
