"""`kvmesh drain`: a worker takes no new work and lets go of what it has; or takes work again."""

import asyncio
from typing import Annotated

import typer

from proto.control import Done
from proto.errors import DeadlineExceeded, Disconnected
from proto.hand_over import Drain, Undrain
from proto.reports import BEATS, AnyBeat, LoadReport
from proto.roles import DrainMode, WorkerState
from services.bus import Bus
from services.console import ASK_LIMIT_S, open_console
from services.liveness import BeatSettings, watch_beats
from services.patience import Wait
from services.process import run_process
from services.status.status_settings import StatusSettings, find_mesh
from services.worker_ask import tell_worker

MARGIN_S = 2.0


def drain(
    worker: Annotated[str, typer.Argument(help="name of the worker")],
    mode: Annotated[
        DrainMode, typer.Option(help="what becomes of running requests: move, finish here, or both")
    ] = DrainMode.MOVE,
    limit_s: Annotated[float, typer.Option(min=0.1, help="seconds until this command gives up")] = 60.0,
    force: Annotated[bool, typer.Option("--force", help="even the last decode worker of a model")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="let it take work again")] = False,
    state: Annotated[str, typer.Option(help="state folder of a mesh that `kvmesh up` runs")] = ".state",
    nats: Annotated[str, typer.Option(help="URL of its NATS; empty: as the state folder says")] = "",
    etcd: Annotated[str, typer.Option(help="host:port of its etcd; empty: as the state folder says")] = "",
    ns: Annotated[str, typer.Option(help="its namespace; empty: as the state folder says")] = "",
) -> None:
    """Have a worker take no new work and hand over what runs; it stays alive, for `--undo` or its end."""
    address = find_mesh(StatusSettings(state=state, nats=nats, etcd=etcd, ns=ns))

    async def run(_: asyncio.Event) -> None:
        async with open_console(address.nats_url, "drain") as console:
            bus, wait = console.bus, console.wait
            wait.what = f"{worker} has not answered yet"
            if undo:
                await tell_worker(bus, address.ns, worker, Undrain(), Done, ASK_LIMIT_S)
                typer.echo(f"{worker} takes work again")
                return
            order = Drain(mode, limit_s, is_forced=force)
            await tell_worker(bus, address.ns, worker, order, Done, ASK_LIMIT_S)
            await wait_drained(bus, address.ns, worker, limit_s, wait)
            typer.echo(f"{worker} is drained")

    raise typer.Exit(run_process(run, drain_limit_s=None))


async def wait_drained(bus: Bus, ns: str, worker: str, limit_s: float, wait: Wait) -> None:
    """Until the worker reports that nothing runs there. What runs there yet is what `wait` tells.

    Raises:
        DeadlineExceeded: something does yet; the worker goes on draining.
        Disconnected: it beats no more.
    """
    wait.what = f"{worker} drains"
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(_: str, beat: AnyBeat) -> None:
        if isinstance(beat, LoadReport) and beat.worker == worker:
            wait.what = f"{worker} drains: {_num_left(beat)} left"
            if _is_empty(beat) and not ended.done():
                ended.set_result(None)

    def note_life(process: str, is_alive: bool) -> None:
        if process == worker and not is_alive and not ended.done():
            ended.set_exception(Disconnected(peer=worker))

    async with watch_beats(bus, ns, BeatSettings(), BEATS.decode) as liveness:
        liveness.on_beat(hear)
        liveness.on_change(note_life)
        try:
            async with asyncio.timeout(limit_s + MARGIN_S):
                await ended
        except TimeoutError:
            raise DeadlineExceeded(what=f"what runs at {worker}", limit_s=limit_s) from None


def _num_left(report: LoadReport) -> int:
    return report.num_running + report.num_waiting + report.num_jobs


def _is_empty(report: LoadReport) -> bool:
    return not _num_left(report) and report.state is not WorkerState.READY
