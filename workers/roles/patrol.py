"""The owner's rounds: expired pins end, and every lent block is asked after until its writer's end is known.

Lost messages heal here: a release that never came, a notice that the bus dropped, a holder that died. What a
dead holder had sent may lie unread in a socket of ours: its blocks go back a round after its end was seen, in
which the transfer thread, that looks often while anything is lent, has emptied it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from proto.control import AskHolding, CancelJob, Done, Holding
from proto.errors import KvmeshError
from workers.control_client import ControlClient
from workers.roles.grants import Grant
from workers.roles.lender import Lender
from workers.roles.proof import are_gone

ROUND_S = 1.0
ASK_TIMEOUT_S = 1.0

log = logging.getLogger(__name__)


class Patrol:
    """Args: `on_overdue` is called once quarantine is older than `max_quarantine_s`."""

    def __init__(
        self,
        lender: Lender,
        control: ControlClient,
        max_quarantine_s: float,
        on_overdue: Callable[[], None],
    ) -> None:
        self._lender = lender
        self._control = control
        self._max_quarantine_s = max_quarantine_s
        self._on_overdue = on_overdue
        self._seen_gone: set[tuple[str, str]] = set()
        self.is_overdue = False

    async def run(self) -> None:
        """A round each second, for ever."""
        while True:
            await asyncio.sleep(ROUND_S)
            self._lender.expire_pins()
            await self._ask_after_grants()
            self._check_age()

    async def _ask_after_grants(self) -> None:
        by_holder: dict[tuple[str, str], list[Grant]] = defaultdict(list)
        now_s = self._lender.grants.now_s()
        for grant in self._lender.grants.all():
            if now_s - grant.began_s >= ROUND_S:
                by_holder[grant.holder, grant.holder_incarnation].append(grant)
        self._seen_gone.intersection_update(by_holder)
        if not by_holder:
            return
        async with asyncio.TaskGroup() as tasks:
            for (holder, incarnation), grants in by_holder.items():
                tasks.create_task(self._ask(holder, incarnation, grants), name=f"ask {holder} what it holds")

    async def _ask(self, holder: str, incarnation: str, grants: list[Grant]) -> None:
        if are_gone(grants[0].processes):
            if (holder, incarnation) in self._seen_gone:
                self._end(grants, f"{holder} is gone")
            self._seen_gone.add((holder, incarnation))
            return
        request = AskHolding([grant.granted.grant for grant in grants])
        try:
            for job in {grant.granted.job for grant in grants if grant.is_quarantined}:
                await self._control.ask(holder, CancelJob(job), Done, ASK_TIMEOUT_S)
            holding = await self._control.ask(holder, request, Holding, ASK_TIMEOUT_S)
        except KvmeshError as error:
            log.info("%s does not say what it holds", holder, extra={"reason": str(error)})
            return
        if holding.incarnation == incarnation:
            self._end([grant for grant in grants if grant.granted.grant not in holding.grants], "not held")

    def _end(self, grants: list[Grant], reason: str) -> None:
        for grant in grants:
            self._lender.end_grant(grant.granted.grant, reason)

    def _check_age(self) -> None:
        now_s = self._lender.grants.now_s()
        oldest_s = max(
            (now_s - grant.began_s for grant in self._lender.grants.all() if grant.is_quarantined),
            default=0.0,
        )
        if oldest_s > self._max_quarantine_s:
            log.error("blocks are in quarantine for %.0f s: this worker has to start anew", oldest_s)
            self.is_overdue = True
            self._on_overdue()
