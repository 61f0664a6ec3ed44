"""A mesh of simulated workers whose roles a planner moves, or a person; its load is played to it.

Each line that a play prints tells what the processes took of a core, how late steps ended, and how late the
player was: where that is not small beside a step, the machine was too slow for the figures.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from proto.errors import InvalidRequest
from proto.reports import BEATS, AnyBeat, LoadReport
from proto.roles import Role
from services.bus import BusSettings, open_bus
from services.demo.swing import CROWD, LIMITS, NUM_WORKERS, SIMULATED
from services.directory import Directory, DirectorySettings, open_directory
from services.liveness import BeatSettings, watch_beats
from services.orders import place_order
from services.replay.http_call import parse_url
from services.replay.player import Pace
from services.replay.reading import Reading
from services.replay.report import Report
from services.replay.session import Target, Terms, play_all
from services.replay.trace import TraceRequest
from services.servers import start_etcd, start_nats
from tests.mesh.simulated_mesh import SimulatedMesh
from tests.perf.planner_figures import Asked, RolesAt, good_share, list_asked
from workers.engine.simulated_model import SimulatedModel

MODEL = "text"
CROWD_NAME = "w"
PLANNER = "planner"
SPLIT_LIMIT_S = 120.0
LEAVE_S = 22.0
"""Of the trace: clients leave by then, since the longest answer that kept both limits would be there."""


class Run(msgspec.Struct, frozen=True):
    """A trace that was played, in its own seconds; `roles` from before its beginning to after its end."""

    asked: Sequence[Asked]
    roles: Sequence[RolesAt]

    @property
    def good_share(self) -> float:
        return good_share(self.asked)


class RoleWatch:
    """Who has which role, by the reports of the workers themselves; `history` on the monotonic clock."""

    def __init__(self) -> None:
        self.history: list[RolesAt] = []
        self.roles: dict[str, Role] = {}
        self._heard = asyncio.Event()

    @property
    def num_prefill(self) -> int:
        return sum(role is Role.PREFILL for role in self.roles.values())

    def hear(self, process: str, beat: AnyBeat) -> None:
        if not isinstance(beat, LoadReport):
            return
        self._heard.set()
        if self.roles.get(process) is beat.role:
            return
        self.roles[process] = beat.role
        if len(self.roles) == NUM_WORKERS:
            self.history.append(RolesAt(time.monotonic(), self.num_prefill))

    async def wait_report(self) -> None:
        """For the next one of any worker."""
        self._heard.clear()
        await self._heard.wait()

    async def wait_all(self) -> None:
        """Until every worker was heard."""
        while len(self.roles) < NUM_WORKERS:
            await self.wait_report()

    async def wait_role(self, worker: str, role: Role) -> None:
        while self.roles[worker] is not role:
            await self.wait_report()


class PlannedMesh:
    """Eight workers; see `open_planned_mesh`. `speed`: how many times as fast as stated all of it runs."""

    def __init__(self, mesh: SimulatedMesh, directory: Directory, watch: RoleWatch, speed: float) -> None:
        self.watch = watch
        self.speed = speed
        self._mesh = mesh
        self._directory = directory
        self._num_plays = 0

    async def set_split(self, num_prefill: int) -> None:
        """By hand: no planner may run. On return so many workers prefill."""
        async with asyncio.timeout(SPLIT_LIMIT_S):
            while self.watch.num_prefill != num_prefill:
                wanted = Role.PREFILL if self.watch.num_prefill < num_prefill else Role.DECODE
                worker = next(name for name, role in self.watch.roles.items() if role is not wanted)
                await self._order(worker, wanted)

    async def _order(self, worker: str, role: Role) -> None:
        try:
            await place_order(self._directory, self._mesh.mesh.ns, worker, role)
        except InvalidRequest as error:  # the last order of a planner may be under way
            print(f"not yet: {error}", flush=True)
            await self.watch.wait_report()
        else:
            await self.watch.wait_role(worker, role)

    @asynccontextmanager
    async def planned(self, speed_up: float) -> AsyncIterator[None]:
        """A planner whose time runs so many times faster moves roles for the time of the body."""
        hurry = speed_up / self.speed
        limits = {"ttft_s": LIMITS.ttft_s * hurry, "itl_s": LIMITS.itl_s * hurry}
        self._mesh.start_planner(PLANNER, speed_up=speed_up, **limits)
        try:
            yield
        finally:
            self._mesh.end_crowd(PLANNER)

    async def play(self, title: str, trace: Sequence[TraceRequest]) -> Run:
        """Every play has prompts of its own, which no cache knows."""
        self._num_plays += 1
        before, began_s = self._spent(), time.monotonic()
        pace = Pace(speed=self.speed, request_limit_s=LEAVE_S / self.speed)
        terms = Terms(pace=pace, limits=LIMITS, seed=self._num_plays)
        target = Target(title, parse_url(self._mesh.url), MODEL)
        (played,) = await play_all(trace, [target], terms, lambda _: None)
        wall_s, after = time.monotonic() - began_s, self._spent()
        spent = {what: after[what] - before[what] for what in after}
        print(f"{title:14s} {_told(played.report)}; {_told_spent(spent, wall_s)}", flush=True)
        return self._make_run(played.readings, trace)

    def _make_run(self, readings: Sequence[Reading], trace: Sequence[TraceRequest]) -> Run:
        begin_s = readings[0].due_s - trace[0].timestamp / 1e3 / self.speed
        roles = [RolesAt(self.speed * (each.at_s - begin_s), each.num_prefill) for each in self.watch.history]
        return Run(list_asked(readings, begin_s, LIMITS, self.speed), roles)

    def _spent(self) -> dict[str, float]:
        """Seconds of CPU by process, then steps of the workers, and the seconds that they ended too late."""
        crowd = self._mesh.processes[CROWD_NAME]
        return {
            **{name: self._mesh.cpu_s(name) for name in self._mesh.processes},
            "player": time.process_time(),
            "steps": crowd.metric("kvmesh_engine_steps"),
            "late": crowd.metric("kvmesh_simulated_late_seconds"),
        }


def _told(report: Report) -> str:
    ttft_s, itl_s, late_s = report.ttft_s, report.itl_s, report.late_s
    failed = f", {report.errors}" if report.errors else ""
    if ttft_s is None or itl_s is None or late_s is None:
        return f"nothing was answered{failed}"
    return (
        f"{report.good_share:6.1%} good, TTFT p50 {ttft_s.p50:.2f} p90 {ttft_s.p90:.2f} s,"
        f" ITL p50 {itl_s.p50 * 1e3:.0f} p90 {itl_s.p90 * 1e3:.0f} ms, {report.remote_share:.0%} remote,"
        f" player late by {late_s.p99 * 1e3:.0f} ms{failed}"
    )


def _told_spent(spent: Mapping[str, float], wall_s: float) -> str:
    """The share of a core that each process took, and how late a step ended on average."""
    shares = " ".join(f"{name} {spent[name] / wall_s:.0%}" for name in list(spent)[:-2])
    return f"CPU {shares}, steps late by {spent['late'] / max(1.0, spent['steps']) * 1e3:.1f} ms"


@asynccontextmanager
async def open_planned_mesh(folder: Path, speed: float) -> AsyncIterator[PlannedMesh]:
    """For the time of the body; half of its workers prefill."""
    nats, etcd = start_nats(folder / "nats"), start_etcd(folder / "etcd")
    try:
        with SimulatedMesh(folder, nats.url, etcd.url, beat_s=1.0 / max(1.0, speed)) as mesh:
            mesh.start_crowd(
                CROWD_NAME,
                MODEL,
                workers=NUM_WORKERS // 2,
                prefill_workers=NUM_WORKERS // 2,
                simulated=msgspec.convert({**SIMULATED, "speed_up": speed}, SimulatedModel),
                **CROWD,
            )
            mesh.wait_workers(NUM_WORKERS // 2)
            async with (
                open_bus(BusSettings(url=nats.url), "watch") as bus,
                open_directory(DirectorySettings(endpoints=[etcd.url])) as directory,
                watch_beats(bus, mesh.mesh.ns, BeatSettings(), BEATS.decode) as liveness,
            ):
                watch = RoleWatch()
                liveness.on_beat(watch.hear)
                async with asyncio.timeout(SPLIT_LIMIT_S):
                    await watch.wait_all()
                yield PlannedMesh(mesh, directory, watch, speed)
    finally:
        etcd.stop()
        nats.stop()
