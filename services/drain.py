"""`kvmesh drain`: a worker takes no new work and lets go of what it has; or takes work again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import typer

from proto import subjects
from proto.codec import encode
from proto.control import CONTROL_REPLIES, ControlRequest, Done
from proto.errors import DeadlineExceeded, Disconnected, InternalFault, KvmeshError, from_fault
from proto.hand_over import Drain, Undrain
from proto.reports import BEATS, AnyBeat, LoadReport
from proto.requests import Refused
from proto.roles import DrainMode, WorkerState
from services.bus import Bus, BusSettings, open_bus
from services.directory import Directory, DirectorySettings, open_directory
from services.liveness import BeatSettings, watch_beats
from services.orders import bump_orders, find_survivors, read_card
from services.process import run_process
from services.status.status_settings import Address, StatusSettings, find_mesh

ASK_LIMIT_S = 10.0
CONNECT_LIMIT_S = 5.0
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

    begin = _begin_by_force if force else _begin

    async def run(_: asyncio.Event) -> None:
        async with _connected(address) as (bus, directory):
            if undo:
                await ask(bus, address.ns, worker, Undrain())
                typer.echo(f"{worker} takes work again")
                return
            await begin(bus, directory, address.ns, worker, Drain(mode, limit_s))
            await wait_drained(bus, address.ns, worker, limit_s)
            typer.echo(f"{worker} is drained")

    raise typer.Exit(run_process(run, drain_limit_s=0))


@asynccontextmanager
async def _connected(address: Address) -> AsyncIterator[tuple[Bus, Directory]]:
    """
    Raises:
        Disconnected: NATS or etcd is out of reach.
    """
    bus_settings = BusSettings(url=address.nats_url, connect_timeout_s=CONNECT_LIMIT_S)
    endpoints = address.etcd_endpoint.split(",")
    directory_settings = DirectorySettings(endpoints=endpoints, connect_timeout_s=CONNECT_LIMIT_S)
    async with (
        open_bus(bus_settings, "kvmesh-drain") as bus,
        open_directory(directory_settings) as directory,
    ):
        yield bus, directory


async def _begin(bus: Bus, directory: Directory, ns: str, worker: str, order: Drain) -> None:
    """The worker is draining, and its model has a ready decode worker still; else all is as it was.

    Raises:
        InvalidRequest: it is the last one, or there is no such worker.
        KvmeshError: it refuses, or is out of reach.
    """
    card = await read_card(directory, ns, worker)
    await find_survivors(directory, ns, card)  # what is clear already disturbs nobody
    try:
        await ask(bus, ns, worker, order)
        await bump_orders(directory, ns, card)
    except (KvmeshError, asyncio.CancelledError):
        if card.state is WorkerState.READY:
            with suppress(KvmeshError):
                await ask(bus, ns, worker, Undrain())
        raise


async def _begin_by_force(bus: Bus, directory: Directory, ns: str, worker: str, order: Drain) -> None:
    await read_card(directory, ns, worker)
    await ask(bus, ns, worker, order)


async def ask(bus: Bus, ns: str, worker: str, request: ControlRequest) -> None:
    """
    Raises:
        KvmeshError: the worker refuses, or gives no answer.
    """
    answer = await bus.request(subjects.worker_control(ns, worker), encode(request), ASK_LIMIT_S)
    reply = CONTROL_REPLIES.decode(answer)
    if isinstance(reply, Refused):
        raise from_fault(reply.fault)
    if not isinstance(reply, Done):
        raise InternalFault(reason=f"{worker} answered with {type(reply).__name__}")


async def wait_drained(bus: Bus, ns: str, worker: str, limit_s: float) -> None:
    """Until the worker reports that nothing runs there.

    Raises:
        DeadlineExceeded: something does yet; the worker goes on draining.
        Disconnected: it beats no more.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(_: str, beat: AnyBeat) -> None:
        if isinstance(beat, LoadReport) and beat.worker == worker and _is_empty(beat) and not ended.done():
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


def _is_empty(report: LoadReport) -> bool:
    is_idle = not (report.num_running or report.num_waiting or report.num_jobs)
    return is_idle and report.state is not WorkerState.READY
