"""Asking another worker on its control subject."""

from typing import TypeVar

from proto.control import ControlRequest
from services.bus import Bus
from services.worker_ask import ask_worker

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
        return await ask_worker(self._bus, self._ns, worker, request, kind, timeout_s)
