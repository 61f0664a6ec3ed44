"""`kvmesh role`: a worker takes another role, and how far it is; or keeps the one that it has after all."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import typer

from proto.errors import DeadlineExceeded, Disconnected, InvalidRequest
from proto.reports import BEATS, AnyBeat
from proto.roles import AskRole, DrainMode, Role, RoleProgress, SwitchRole, TakeBackRole
from services.bus import Bus
from services.console import ASK_LIMIT_S, open_console
from services.liveness import BeatSettings, Liveness, watch_beats
from services.patience import Say, Wait, open_wait
from services.process import run_process
from services.status.status_settings import StatusSettings, find_mesh
from services.tasks import open_tasks
from services.worker_ask import tell_worker

PROGRESS_LIMIT_S = 2.0
LOOK_S = 0.5
MARGIN_S = 20.0
"""Beyond the limit that the work of the old role has: the directory is asked before and after it."""


def role(
    worker: Annotated[str, typer.Argument(help="name of the worker")],
    to: Annotated[Role | None, typer.Argument(metavar="ROLE", help="prefill or decode; none: say it")] = None,
    wait: Annotated[bool, typer.Option(help="until the worker has the role, or keeps the old one")] = True,
    drain: Annotated[
        DrainMode, typer.Option(help="what becomes of running requests: move, finish here, or both")
    ] = DrainMode.MOVE,
    limit_s: Annotated[float, typer.Option(min=0.1, help="seconds that they may take to let go")] = 30.0,
    take_back: Annotated[bool, typer.Option("--take-back", help="keep the role that it has")] = False,
    state: Annotated[str, typer.Option(help="state folder of a mesh that `kvmesh up` runs")] = ".state",
    nats: Annotated[str, typer.Option(help="URL of its NATS; empty: as the state folder says")] = "",
    etcd: Annotated[str, typer.Option(help="host:port of its etcd; empty: as the state folder says")] = "",
    ns: Annotated[str, typer.Option(help="its namespace; empty: as the state folder says")] = "",
) -> None:
    """Have a worker prefill or decode from now on, while it lives; what runs there moves on."""
    if to is not None and take_back:
        raise typer.BadParameter("a role is ordered or taken back, not both", param_hint="--take-back")
    address = find_mesh(StatusSettings(state=state, nats=nats, etcd=etcd, ns=ns))

    async def run(_: asyncio.Event) -> None:
        async with open_console(address.nats_url, "role") as console:
            if to is None:
                console.wait.what = _unanswered(worker)
                await _show(console.bus, address.ns, worker, TakeBackRole() if take_back else AskRole())
                return
            order = SwitchRole(to, drain, limit_s)
            if wait:
                await switch_role(console.bus, address.ns, worker, order, typer.echo)
                return
            console.wait.what = _unanswered(worker)
            await _place(console.bus, address.ns, worker, order, typer.echo)
            typer.echo(f"{worker} is on its way to {to}")

    raise typer.Exit(run_process(run, drain_limit_s=None))


def _unanswered(worker: str) -> str:
    return f"{worker} has not answered yet"


async def _show(bus: Bus, ns: str, worker: str, word: TakeBackRole | AskRole) -> None:
    progress = await _tell(bus, ns, worker, word)
    typer.echo(f"{worker} is a {progress.role} worker in epoch {progress.epoch}, and {progress.state}")
    if progress.wanted is not None:
        typer.echo(_stage_of(worker, progress))


async def _tell(bus: Bus, ns: str, worker: str, word: SwitchRole | TakeBackRole | AskRole) -> RoleProgress:
    return await tell_worker(bus, ns, worker, word, RoleProgress, ASK_LIMIT_S)


async def _place(bus: Bus, ns: str, worker: str, order: SwitchRole, say: Say) -> RoleProgress:
    """Raises as `tell_worker`; where the order may stand all the same, that is said before."""
    try:
        return await _tell(bus, ns, worker, order)
    except (Disconnected, DeadlineExceeded, asyncio.CancelledError):
        say(f"the order may stand all the same: {_what_to_do(worker)}")
        raise


def _what_to_do(worker: str) -> str:
    return f"`kvmesh role {worker}` tells how far it is, `--take-back` ends it"


async def switch_role(bus: Bus, ns: str, worker: str, order: SwitchRole, say: Say) -> None:
    """Until the worker has the role. Each stage is said, and again each second.

    Raises:
        InvalidRequest: it is refused, or the worker keeps its role, with the reason.
        Disconnected: the worker beats no more.
        DeadlineExceeded: it is on its way still.
        KvmeshError: it gives no answer.
    """
    began_s = time.monotonic()
    async with (
        open_wait(say, _unanswered(worker)) as wait,
        watch_beats(bus, ns, BeatSettings(), BEATS.decode) as liveness,
        _open_lookout(liveness, worker) as lookout,
    ):
        placed = await _place(bus, ns, worker, order, say)
        try:
            progress = await _follow(bus, ns, worker, placed, order.limit_s + MARGIN_S, lookout, wait)
        except (Disconnected, DeadlineExceeded, asyncio.CancelledError):
            say(f"the order stands: {_what_to_do(worker)}")
            raise
        wait.what = ""
    _check_fulfilled(worker, order, placed, progress)
    took_s = time.monotonic() - began_s
    say(f"{worker} is a {progress.role} worker in epoch {progress.epoch}, after {took_s:.2f} s")


def _check_fulfilled(worker: str, order: SwitchRole, placed: RoleProgress, now: RoleProgress) -> None:
    """
    Raises:
        InvalidRequest: it has the role that it had when the order was placed.
    """
    epoch = placed.epoch if placed.role is order.role else placed.epoch + 1
    if now.epoch < epoch:
        raise InvalidRequest(field="role", reason=f"{worker} stays a {now.role} worker: {now.reason}")


async def _follow(
    bus: Bus,
    ns: str,
    worker: str,
    progress: RoleProgress,
    limit_s: float,
    lookout: "_Lookout",
    wait: Wait,
) -> RoleProgress:
    """Asks after each beat, which comes soon when there is news: so a lost answer is no end.

    Raises:
        KvmeshError: as `switch_role`.
    """
    try:
        async with asyncio.timeout(limit_s):
            while progress.wanted is not None:
                wait.tell(_stage_of(worker, progress))
                await lookout.wait_beat()
                with suppress(DeadlineExceeded):
                    progress = await tell_worker(bus, ns, worker, AskRole(), RoleProgress, PROGRESS_LIMIT_S)
    except TimeoutError:
        raise DeadlineExceeded(what=f"the switch of {worker}", limit_s=limit_s) from None
    return progress


def _stage_of(worker: str, progress: RoleProgress) -> str:
    left = f", {progress.num_left} left" if progress.num_left else ""
    return f"{worker} on its way to {progress.wanted}: {progress.stage}{left}"


class _Lookout:
    """Whether a worker has beaten since the last look, and beats at all. See `_open_lookout`."""

    def __init__(self, liveness: Liveness[AnyBeat], worker: str) -> None:
        self._liveness = liveness
        self._worker = worker
        self._has_beaten = asyncio.Event()
        self._has_changed = asyncio.Event()

    def hear(self, process: str, _: AnyBeat) -> None:
        if process == self._worker:
            self._has_beaten.set()

    def note_life(self, process: str, _: bool) -> None:
        if process == self._worker:
            self._has_changed.set()

    async def wait_beat(self) -> None:
        await self._has_beaten.wait()
        self._has_beaten.clear()

    async def run(self) -> None:
        """
        Raises:
            Disconnected: it beats no more, or never did while it should have.
        """
        while not self._liveness.is_lost(self._worker):
            self._has_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._has_changed.wait()
        raise Disconnected(peer=self._worker)


@asynccontextmanager
async def _open_lookout(liveness: Liveness[AnyBeat], worker: str) -> AsyncIterator[_Lookout]:
    """The body is cut short when the worker is lost.

    Raises:
        Disconnected: as `_Lookout.run`.
    """
    lookout = _Lookout(liveness, worker)
    liveness.on_beat(lookout.hear)
    liveness.on_change(lookout.note_life)
    async with open_tasks() as tasks:
        looking = tasks.create_task(lookout.run(), name="lookout")
        try:
            yield lookout
        finally:
            looking.cancel()
