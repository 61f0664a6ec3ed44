"""Whether this worker has heard the others: until then it would compute what another should.

Beats come each second: who starts beside others knows of nobody for that long, and would prefill all itself.
"""

import asyncio
import logging

from proto.reports import AnyBeat
from services.liveness import Liveness
from workers.transfer.agents import Agents

NUM_SHOWN = 3

log = logging.getLogger(__name__)


class Acquaintance:
    """Looked after at the start: who comes later beats as soon as the directory lists it.

    `obstacle` says of whom nothing was heard yet, in time: a worker that the directory lists may be dead.

    Units: `patience_s`, in which each that lives should have beaten.
    """

    def __init__(self, agents: Agents, liveness: Liveness[AnyBeat], patience_s: float) -> None:
        self._agents = agents
        self._liveness = liveness
        self._patience_s = patience_s
        self._changed = asyncio.Event()
        self.obstacle = "it does not know who is there yet"

    async def run(self) -> None:
        """Until all who are there now have been heard, or have had the time to be."""
        self._liveness.on_change(lambda process, is_alive: self._changed.set())
        await self._agents.wait_listed()
        listed = self._agents.workers()
        try:
            async with asyncio.timeout(self._patience_s):
                while strangers := [worker for worker in listed if not self._liveness.is_alive(worker)]:
                    self.obstacle = f"it has not heard {_shown(strangers)} yet"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.info("%s did not beat", _shown(strangers))
        self.obstacle = ""


def _shown(workers: list[str]) -> str:
    more = f" and {len(workers) - NUM_SHOWN} more" if len(workers) > NUM_SHOWN else ""
    return ", ".join(workers[:NUM_SHOWN]) + more
