"""A worker whose landing notices are lost, or come twice, the second time late: NIXL's own, with faults."""

import logging
import random

import workers.transfer.opened_rank
from workers.transfer.nixl_transport import NixlTransport

LOST, LATE_AGAIN = "a landing notice is lost", "a landing notice comes again"
SHARE = 0.3

log = logging.getLogger(__name__)


class FaultyNotices(NixlTransport):
    """Loses this share of what it tells, and tells as much once more, with what it tells next."""

    _chosen = random.Random(65)
    _again: tuple[str, bytes] | None = None

    def notify(self, agent: str, notice: bytes) -> None:
        if self._again is not None:
            log.info(LATE_AGAIN)
            super().notify(*self._again)
            self._again = None
        drawn = self._chosen.random()
        if drawn < SHARE:
            log.info(LOST)
            return
        super().notify(agent, notice)
        if drawn < 2 * SHARE:
            self._again = (agent, notice)


def lose_notices() -> None:
    """In a process that is to become a worker. Mutates: how it makes its agent."""
    workers.transfer.opened_rank.NixlTransport = FaultyNotices  # type: ignore[attr-defined]
