"""An operator who orders the workers of a mesh into other roles over its bus, and looks at how that goes."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from proto import subjects
from proto.control import ControlRequest
from proto.reports import BEATS, LoadReport
from proto.roles import AskRole, Role, RoleProgress, RoleStage, SwitchRole, WorkerState
from services.bus import Bus, BusSettings, Delivery, open_bus
from services.worker_ask import Reply, ask_worker
from tests.mesh.running_mesh import RunningMesh
from tests.workers.harness import until

ASK_S = 20.0
PATIENT_S = 120.0
LOOK_S = 0.005


@dataclass(frozen=True)
class Flip:
    """A switch that is done.

    Units: on the monotonic clock, from the order to the answer that it is; `stage_s` is how long it was in
    each stage, as far as answers tell: what is before the first one counts to the stage that it names.
    """

    worker: str
    role: Role
    epoch: int
    began_s: float
    ended_s: float
    stage_s: Mapping[RoleStage, float]

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


def other(role: Role) -> Role:
    return Role.PREFILL if role is Role.DECODE else Role.DECODE


class Operator:
    """Belongs to the event loop."""

    def __init__(self, bus: Bus, ns: str) -> None:
        self.reports: dict[str, LoadReport] = {}
        self._bus = bus
        self._ns = ns

    async def listen(self) -> None:
        """From now on `reports` has the last one of each worker."""
        await self._bus.subscribe(subjects.beat_any(self._ns), self._hear)

    def _hear(self, delivery: Delivery) -> None:
        beat = BEATS.decode(delivery.payload)
        if isinstance(beat, LoadReport):
            self.reports[beat.worker] = beat

    async def ask(self, worker: str) -> RoleProgress:
        """Raises as `ask_worker`, as all here."""
        return await self.tell(worker, AskRole(), RoleProgress)

    async def order(self, worker: str, role: Role) -> RoleProgress:
        """The worker has heard the order, and begun."""
        return await self.tell(worker, SwitchRole(role, placed_by="test"), RoleProgress)

    async def tell(self, worker: str, request: ControlRequest, kind: type[Reply]) -> Reply:
        return await ask_worker(self._bus, self._ns, worker, request, kind, ASK_S)

    async def become(self, worker: str, role: Role) -> Flip:
        """It takes `role`, and is ready in the next epoch."""
        epoch = (await self.ask(worker)).epoch + 1
        stage_s: dict[RoleStage, float] = defaultdict(float)
        began_s = heard_s = time.monotonic()
        progress = await self.order(worker, role)
        while progress.wanted is not None:
            assert heard_s < began_s + PATIENT_S, progress
            stage, before_s = progress.stage, heard_s
            await asyncio.sleep(LOOK_S)
            progress, heard_s = await self.ask(worker), time.monotonic()
            stage_s[stage] += heard_s - before_s
        assert (progress.role, progress.epoch, progress.state) == (role, epoch, WorkerState.READY), progress
        return Flip(worker, role, epoch, began_s, heard_s, stage_s)

    async def wait_served(self, flip: Flip) -> None:
        """Until some work of the new role has ended there."""

        async def has_served() -> bool:
            progress = await self.ask(flip.worker)
            assert (progress.role, progress.epoch) == (flip.role, flip.epoch)
            return progress.num_served > 0

        await until(f"{flip.worker} serves as {flip.role}", has_served, PATIENT_S)


@asynccontextmanager
async def open_operator(mesh: RunningMesh) -> AsyncIterator[Operator]:
    async with open_bus(BusSettings(url=mesh.file.nats_url), "an operator") as bus:
        operator = Operator(bus, mesh.file.namespace)
        await operator.listen()
        yield operator
