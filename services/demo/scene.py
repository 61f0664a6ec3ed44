"""What is to be seen of a mesh whose roles change: workers, what clients feel, the planner's last move."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from proto import keys
from proto.codec import decode
from proto.reports import BEATS, AnyBeat, Beat
from proto.roles import Order, Role, WorkerState
from services.bus import BusSettings, open_bus
from services.demo.swing import Mix
from services.directory import Change, Changed, Directory, DirectorySettings, Listed, open_directory
from services.launcher.state import MeshFile
from services.liveness import BeatSettings, watch_beats
from services.planner.traffic_meter import MeterRules, Traffic, TrafficMeter
from services.status.rows import WorkerRow
from services.status.view import MeshView
from services.tasks import open_tasks

NUM_KEPT = 60
QUANTILE = 0.9
FELT_S = 3.0
"""Latencies are those of so long ago at most, and so are rates."""


class LastMove(msgspec.Struct, frozen=True):
    """The newest order. `state` is how it stands. Units: seconds since it was placed."""

    order: Order
    age_s: float
    state: str


class Sight(msgspec.Struct, frozen=True):
    """The mesh at one look. `history` is how many workers prefilled at the last looks, the newest last."""

    mix: Mix
    rows: Sequence[WorkerRow]
    traffic: Traffic
    history: Sequence[int]
    last_move: LastMove | None

    def count(self, role: Role) -> int:
        return sum(row.role == role for row in self.rows)

    @property
    def num_in_flight(self) -> int:
        """Requests that run or wait anywhere: what has no token yet waits at the frontend too."""
        running = sum(row.num_running for row in self.rows if row.role == Role.DECODE)
        return running + self.traffic.num_waiting


class Moves:
    """The newest order in the directory, and whether it was taken back."""

    def __init__(self) -> None:
        self._order: Order | None = None
        self._placed_s = 0.0
        self._is_gone = False

    def apply(self, change: Change) -> None:
        match change:
            case Listed():
                return  # older than this view
            case Changed(entry=entry):
                self._note(decode(entry.value, Order))
            case _:
                gone = keys.last_part(change.key)
                self._is_gone = self._is_gone or (self._order is not None and self._order.worker == gone)

    def _note(self, order: Order) -> None:
        if not order.is_begun:
            self._order, self._placed_s, self._is_gone = order, time.monotonic(), False

    def last(self, rows: Sequence[WorkerRow]) -> LastMove | None:
        order = self._order
        if order is None:
            return None
        row = next((row for row in rows if row.worker == order.worker), None)
        is_done = row is not None and row.epoch >= order.epoch and row.state == WorkerState.READY
        state = "done" if is_done else "given up" if self._is_gone else "under way"
        return LastMove(order, time.monotonic() - self._placed_s, state)


class Scene:
    """Looks at one mesh. `mix` is what is asked of it now, as whoever plays it says. See `open_scene`."""

    def __init__(self, view: MeshView, mix: Mix) -> None:
        self.mix = mix
        self._view = view
        self._meter = TrafficMeter(MeterRules(FELT_S, FELT_S, ahead_s=0.0, quantile=QUANTILE))
        self._moves = Moves()
        self._history: deque[int] = deque(maxlen=NUM_KEPT)

    def hear(self, process: str, beat: AnyBeat) -> None:
        """There is one model, and so one traffic."""
        if isinstance(beat, Beat):
            for traffic in beat.traffic:
                self._meter.hear(process, traffic)

    async def follow_orders(self, directory: Directory, ns: str) -> None:
        """For ever."""
        async with directory.watch(keys.orders(ns)) as changes:
            async for change in changes:
                self._moves.apply(change)

    async def look(self) -> Sight:
        rows = await self._view.look()
        self._meter.measure(time.monotonic())
        self._history.append(sum(row.role == Role.PREFILL for row in rows))
        traffic = self._meter.traffic()
        return Sight(self.mix, rows, traffic, list(self._history), self._moves.last(rows))


@asynccontextmanager
async def open_scene(mesh: MeshFile, mix: Mix) -> AsyncIterator[Scene]:
    """For the time of the body.

    Raises:
        Disconnected: NATS or etcd is out of reach.
    """
    async with (
        open_bus(BusSettings(url=mesh.nats_url), "kvmesh-demo") as bus,
        open_directory(DirectorySettings(endpoints=[mesh.etcd_endpoint])) as directory,
        watch_beats(bus, mesh.namespace, BeatSettings(), BEATS.decode) as liveness,
        open_tasks() as tasks,
    ):
        scene = Scene(MeshView(bus, directory, liveness, mesh.namespace), mix)
        liveness.on_beat(scene.hear)
        following: asyncio.Task[None] = tasks.create_task(
            scene.follow_orders(directory, mesh.namespace), name="orders"
        )
        try:
            yield scene
        finally:
            following.cancel()
