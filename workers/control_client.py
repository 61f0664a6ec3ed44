"""Asking another worker on its control subject."""

from typing import TypeVar

from proto import subjects
from proto.codec import encode
from proto.control import CONTROL_REPLIES, ControlRequest
from proto.errors import InternalFault, from_fault
from proto.requests import Refused
from services.bus import Bus

R = TypeVar("R")


class ControlClient:
    """Typed request and reply between workers of one namespace."""

    def __init__(self, bus: Bus, ns: str) -> None:
        self._bus = bus
        self._ns = ns

    async def ask(self, worker: str, request: ControlRequest, kind: type[R], timeout_s: float) -> R:
        """The answer, which must be of `kind`.

        Raises:
            KvmeshError: what the worker refused with, or `NoResponder`, `DeadlineExceeded`, `Disconnected`.
        """
        payload = encode(request, self._bus.max_payload_bytes)
        raw = await self._bus.request(subjects.worker_control(self._ns, worker), payload, timeout_s)
        reply = CONTROL_REPLIES.decode(raw)
        if isinstance(reply, Refused):
            raise from_fault(reply.fault)
        if not isinstance(reply, kind):
            raise InternalFault(reason=f"{worker} answered {type(reply).__name__}, not {kind.__name__}")
        return reply
