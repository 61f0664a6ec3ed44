"""Whether the routers send work here: a worker is ready once every router that lives has it in its list.

Registered is not enough: a router takes a moment to read the card and hear the first report, and whoever
stops an old worker once the new one is ready would leave a moment without any.
"""

import asyncio
import logging

from proto import subjects
from proto.codec import encode
from proto.control import CONTROL_REPLIES, Admitted, AskAdmitted
from proto.errors import KvmeshError
from proto.reports import AnyBeat, Beat
from services.backoff import Backoff
from services.bus import Bus
from services.liveness import Liveness
from workers.roles.term import Term

ASK_S = 1.0

log = logging.getLogger(__name__)


class Admittance:
    """Asked once, at the start: a router that comes later reads the directory before it takes requests."""

    def __init__(self, bus: Bus, ns: str, term: Term, liveness: Liveness[AnyBeat]) -> None:
        self._bus = bus
        self._ns = ns
        self._term = term
        self._liveness = liveness
        self.obstacle = "no router knows it yet"

    async def run(self) -> None:
        """Asks until all have said yes."""
        backoff = Backoff(first_s=0.02, most_s=0.5)
        while self.obstacle:
            routers = self._routers()
            lacking = [router for router in routers if not await self._is_admitted_by(router)]
            if routers and not lacking:
                self.obstacle = ""
            else:
                self.obstacle = f"not admitted by {', '.join(lacking)}" if lacking else "no router is there"
                await asyncio.sleep(backoff.next_s())

    def _routers(self) -> list[str]:
        beats = {process: self._liveness.last(process) for process in self._liveness.alive()}
        return [process for process, beat in beats.items() if isinstance(beat, Beat) and _is_router(beat)]

    async def _is_admitted_by(self, router: str) -> bool:
        ask = AskAdmitted(self._term.worker, self._term.incarnation)
        try:
            answer = await self._bus.request(subjects.router_control(self._ns, router), encode(ask), ASK_S)
            reply = CONTROL_REPLIES.decode(answer)
        except KvmeshError as error:
            log.debug("router %s does not say whether it knows this worker: %s", router, error)
            return False
        return isinstance(reply, Admitted) and reply.is_admitted


def _is_router(beat: Beat) -> bool:
    return beat.kind == "router" and not beat.is_leaving
