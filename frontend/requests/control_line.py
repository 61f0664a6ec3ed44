"""What the frontend tells and asks workers and routers: cancels, acknowledgements, resends.

A cancel or an acknowledgement that is lost does no harm: the worker's live offsets name the attempt again a
second later, and it is answered again.
"""

import asyncio
import logging

from proto import subjects
from proto.codec import encode
from proto.control import CONTROL_REPLIES, Acknowledge, Cancel, ControlRequest, Resend, Resent
from proto.errors import InvalidRequest, KvmeshError, from_fault
from proto.requests import Refused
from proto.streams import Frame
from services.bus import Bus

log = logging.getLogger(__name__)

ANSWER_LIMIT_S = 1.0


class ControlLine:
    """Belongs to one event loop; its tasks belong to `tasks`."""

    def __init__(self, bus: Bus, ns: str, tasks: asyncio.TaskGroup) -> None:
        self._bus = bus
        self._ns = ns
        self._tasks = tasks
        self._ends: dict[str, list[tuple[str, int]]] = {}

    def acknowledge(self, worker: str, request: str, attempt: int) -> None:
        """Sent with others at the next `send_acknowledgements`."""
        self._ends.setdefault(worker, []).append((request, attempt))

    def send_acknowledgements(self) -> None:
        ends, self._ends = self._ends, {}
        for worker, of_worker in ends.items():
            self._tell(subjects.worker_control(self._ns, worker), Acknowledge(of_worker))

    def cancel(self, subject: str, request: str, attempt: int) -> None:
        """`subject`: a worker's control subject, or that of a router whose queue holds the request."""
        self._tell(subject, Cancel(request, attempt))

    async def resend(self, worker: str, request: str, attempt: int, offset: int) -> Frame:
        """All that `worker` has of the attempt from `offset` on.

        Raises:
            NoResponder, DeadlineExceeded, Disconnected: as `Bus.request`.
            KvmeshError: any other one is the worker's refusal.
        """
        subject = subjects.worker_control(self._ns, worker)
        answer = await self._bus.request(subject, encode(Resend(request, attempt, offset)), ANSWER_LIMIT_S)
        reply = CONTROL_REPLIES.decode(answer)
        match reply:
            case Resent(frame=frame) if frame.request == request and frame.attempt == attempt:
                return frame
            case Refused(fault=fault):
                raise from_fault(fault)
        raise InvalidRequest(field="reply", reason=f"{type(reply).__name__} answers no Resend")

    def _tell(self, subject: str, message: ControlRequest) -> None:
        self._tasks.create_task(self._send(subject, encode(message)), name=f"tell {subject}")

    async def _send(self, subject: str, payload: bytes) -> None:
        try:
            await self._bus.request(subject, payload, ANSWER_LIMIT_S)
        except KvmeshError as error:
            log.debug("%s was not told: %s", subject, error)
