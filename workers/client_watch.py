"""Which frontends are gone for good: nothing is computed for one that neither beats nor listens.

A frontend that reconnects is silent for a moment and unheard for another; only both together, for a while,
mean that nobody will read what is computed.
"""

import asyncio
import time
from collections.abc import Collection

from proto import subjects
from proto.errors import DeadlineExceeded, Disconnected
from proto.reports import AnyBeat
from services.bus import Bus
from services.liveness import Liveness
from workers.decode_desk import DecodeDesk

LOOK_S = 0.5
PROBE_S = 1.0


class ClientWatch:
    """
    Args:
        desks: those of all workers of this process; may change meanwhile.
        patience_s: seconds that a frontend without a beat is given before it is asked after.
    """

    def __init__(
        self,
        bus: Bus,
        ns: str,
        liveness: Liveness[AnyBeat],
        desks: Collection[DecodeDesk],
        patience_s: float,
    ) -> None:
        self._bus = bus
        self._ns = ns
        self._liveness = liveness
        self._desks = desks
        self._patience_s = patience_s
        self._silent_since_s: dict[str, float] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            for client in self._take_overdue():
                if not await self._listens(client):
                    for desk in self._desks:
                        desk.cancel_client(client)

    def _take_overdue(self) -> list[str]:
        """Who has been silent for too long; each is asked after at every look until it beats again."""
        now_s = time.monotonic()
        clients = {client for desk in self._desks for client in desk.clients()}
        silent = [client for client in clients if not self._liveness.is_alive(client)]
        self._silent_since_s = {client: self._silent_since_s.get(client, now_s) for client in silent}
        return [c for c, since_s in self._silent_since_s.items() if now_s - since_s >= self._patience_s]

    async def _listens(self, client: str) -> bool:
        """True also when it cannot be known: then the silence may be ours."""
        try:
            return await self._bus.has_responder(subjects.stream(self._ns, client), PROBE_S)
        except (Disconnected, DeadlineExceeded):
            self._silent_since_s.clear()
            return True
