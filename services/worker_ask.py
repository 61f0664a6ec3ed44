"""A question to one worker on its control subject, and the answer that it must be."""

from typing import TypeVar

from proto import subjects
from proto.codec import encode
from proto.control import CONTROL_REPLIES, ControlRequest
from proto.errors import DeadlineExceeded, InternalFault, InvalidRequest, NoResponder, from_fault
from proto.names import check_id
from proto.requests import Refused
from services.bus import Bus

Reply = TypeVar("Reply")


async def ask_worker(
    bus: Bus, ns: str, worker: str, request: ControlRequest, kind: type[Reply], limit_s: float
) -> Reply:
    """The answer, which must be of `kind`.

    Raises:
        KvmeshError: what the worker refused with, or `NoResponder`, `DeadlineExceeded`, `Disconnected`.
    """
    payload = encode(request, bus.max_payload_bytes)
    try:
        raw = await bus.request(subjects.worker_control(ns, worker), payload, limit_s)
    except DeadlineExceeded:
        raise DeadlineExceeded(what=f"asking {worker}", limit_s=limit_s) from None
    reply = CONTROL_REPLIES.decode(raw)
    if isinstance(reply, Refused):
        raise from_fault(reply.fault)
    if not isinstance(reply, kind):
        raise InternalFault(reason=f"{worker} answered {type(reply).__name__}, not {kind.__name__}")
    return reply


async def tell_worker(
    bus: Bus, ns: str, worker: str, request: ControlRequest, kind: type[Reply], limit_s: float
) -> Reply:
    """An operator's word: as `ask_worker`, to a name that somebody has typed.

    Raises:
        InvalidRequest: there is no such worker, or can be none.
        KvmeshError: otherwise as `ask_worker`.
    """
    check_id(worker, "worker")
    try:
        return await ask_worker(bus, ns, worker, request, kind, limit_s)
    except NoResponder:
        reason = f"there is no worker {worker!r} that answers; `kvmesh status` names all"
        raise InvalidRequest(field="worker", reason=reason) from None
