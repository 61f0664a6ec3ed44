"""One simulated worker: a lease, subjects, a pool and events of its own, over what its process shares."""

import asyncio
from dataclasses import dataclass
from functools import partial

from proto.cards import ModelCard, RankAgent
from proto.errors import InternalFault
from proto.jobs import Landing
from proto.names import new_id
from proto.roles import Role
from services.bus import Bus
from services.directory import Directory
from services.metrics import WorkerMetrics
from services.models.folder import ModelFolder
from services.tracing import Tracing
from services.work_queue import WorkQueue
from workers.assembly import Ground, Parts, assemble
from workers.bridge import EngineBridge
from workers.engine.engine import Engine
from workers.engine.simulated_model import SimulatedTime
from workers.neighbours import Neighbours
from workers.registration import Registration
from workers.roles.order_watch import OrderWatch, adopt_order
from workers.roles.proof import own_identity
from workers.roles.term import Term
from workers.runners import engine_settings
from workers.serving import send_all_elsewhere, serve, worker_card
from workers.settings import WorkerSettings
from workers.simulated.instant_runner import InstantRunner
from workers.simulated.pacer import Lateness, Pacer
from workers.simulated.wire import Wire, WireEnd
from workers.transfer.moved import MovedCounter
from workers.transfer.own_memory import OwnMemory, OwnRank
from workers.transfer.peers import Peers

HARDWARE = "simulated"


@dataclass(frozen=True, slots=True)
class Shared:
    """What all workers of a process have together."""

    settings: WorkerSettings
    folder: ModelFolder
    card: ModelCard
    bus: Bus
    directory: Directory
    queue: WorkQueue
    orders: OrderWatch
    neighbours: Neighbours
    wire: Wire
    lateness: Lateness
    metrics: WorkerMetrics
    tracing: Tracing


class SimulatedWorker:
    """`leave` ends it in good order; `ready` is set while it can be chosen. `ground` and `parts` are there
    from then on."""

    def __init__(self, shared: Shared, name: str, role: Role) -> None:
        self.term = Term(name, new_id(), role)
        self.ready = asyncio.Event()
        self.leave = asyncio.Event()
        self.ground: Ground | None = None
        self.parts: Parts | None = None
        self._shared = shared
        self._moved = MovedCounter(shared.metrics)

    async def run(self) -> None:
        """From its registration until it has left.

        Raises:
            KvmeshError: it cannot start, or its engine has ended.
        """
        shared, name = self._shared, self.term.worker
        await adopt_order(shared.directory, shared.settings.mesh.ns, self.term)
        agent = f"{name}.{self.term.incarnation}"
        async with shared.directory.open_lease() as lease:
            with shared.wire.end(agent, self._land, partial(self._moved.note, 0)) as end:
                ground = self.ground = self._make_ground(agent, end)
                parts = self.parts = assemble(ground, self.leave.set)
                registration = Registration(
                    lease,
                    shared.settings.mesh.ns,
                    worker_card(ground, HARDWARE),
                    ground.memory.card(name, self.term.incarnation),
                )
                forgets = [
                    shared.neighbours.on_lost(parts.lose),
                    shared.neighbours.agents.on_forgotten(ground.peers.forget),
                ]
                try:
                    companions = {"engine": self._compute(ground, parts)}
                    await serve(ground, parts, registration, companions, self.leave, self.ready.set)
                finally:
                    self.ready.clear()
                    for forget in forgets:
                        forget()

    def _make_ground(self, agent: str, end: WireEnd) -> Ground:
        shared, settings = self._shared, self._shared.settings
        runner = InstantRunner(settings.simulated, settings.num_blocks, settings.block_size)
        bridge = EngineBridge()
        (pool,) = runner.pools
        memory = OwnMemory([OwnRank(RankAgent(agent, b"", pool), own_identity(), end)])
        return Ground(
            settings=settings,
            term=self.term,
            orders=shared.orders,
            bus=shared.bus,
            directory=shared.directory,
            queue=shared.queue,
            engine=Engine(runner, engine_settings(settings, runner, shared.folder), bridge),
            bridge=bridge,
            memory=memory,
            peers=Peers(memory, self.term.worker, shared.neighbours.agents),
            neighbours=shared.neighbours,
            card=shared.card,
            metrics=shared.metrics,
            tracing=shared.tracing,
            moved=self._moved,
            time=SimulatedTime(settings.simulated, self.term.worker),
        )

    async def _compute(self, ground: Ground, parts: Parts) -> None:
        assert ground.time is not None
        try:
            await Pacer(ground.engine, ground.time, self._shared.lateness).run()
        except InternalFault:
            await send_all_elsewhere(ground, parts)
            raise

    def _land(self, landing: Landing) -> None:
        if self.parts is not None:
            self.parts.lender.land(landing)
