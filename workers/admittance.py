"""Whether the routers send work here: a worker is ready once every router that lives has it in its list.

Registered is not enough: a router takes a moment to read the card and hear the first report, and whoever
stops an old worker once the new one is ready would leave a moment without any.
"""

import asyncio
import logging
from collections.abc import Sequence

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
NUM_AT_ONCE = 50  # questions to a router in flight

log = logging.getLogger(__name__)


class Admittance:
    """Asked at the start: a router that comes later reads the directory before it takes requests.

    `terms` are those of the workers of this process.
    """

    def __init__(self, bus: Bus, ns: str, terms: Sequence[Term], liveness: Liveness[AnyBeat]) -> None:
        self._bus = bus
        self._ns = ns
        self._terms = terms
        self._liveness = liveness
        self._given: set[tuple[str, str]] = set()  # router and worker
        self.obstacle = "no router knows it yet"

    async def run(self) -> None:
        """Asks until all have said yes of all, nobody twice who has."""
        backoff = Backoff(first_s=0.02, most_s=0.5)
        while self.obstacle:
            routers = self._routers()
            lacking = [router for router in routers if not await self._are_admitted_by(router)]
            if routers and not lacking:
                self.obstacle = ""
            else:
                self.obstacle = f"not admitted by {', '.join(lacking)}" if lacking else "no router is there"
                await asyncio.sleep(backoff.next_s())

    def _routers(self) -> list[str]:
        beats = {process: self._liveness.last(process) for process in self._liveness.alive()}
        return [process for process, beat in beats.items() if isinstance(beat, Beat) and _is_router(beat)]

    async def _are_admitted_by(self, router: str) -> bool:
        """Asks of some at once, and of no more after the first that is not."""
        asked = [term for term in self._terms if (router, term.worker) not in self._given]
        for start in range(0, len(asked), NUM_AT_ONCE):
            some = asked[start : start + NUM_AT_ONCE]
            async with asyncio.TaskGroup() as tasks:
                asking = {
                    term.worker: tasks.create_task(
                        self._is_admitted_by(router, term), name=f"{term.worker} asks {router}"
                    )
                    for term in some
                }
            admitted = [worker for worker, answer in asking.items() if answer.result()]
            self._given |= {(router, worker) for worker in admitted}
            if len(admitted) < len(some):
                return False
        return True

    async def _is_admitted_by(self, router: str, term: Term) -> bool:
        ask = AskAdmitted(term.worker, term.incarnation)
        try:
            answer = await self._bus.request(subjects.router_control(self._ns, router), encode(ask), ASK_S)
            reply = CONTROL_REPLIES.decode(answer)
        except KvmeshError as error:
            log.debug("router %s does not say whether it knows %s: %s", router, term.worker, error)
            return False
        return isinstance(reply, Admitted) and reply.is_admitted


def _is_router(beat: Beat) -> bool:
    return beat.kind == "router" and not beat.is_leaving
