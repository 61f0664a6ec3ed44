"""The command: the choice, and with `--explain` a line for every worker, the cheapest first."""

import asyncio

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proto.control import Explained
from services.bus import BusSettings, open_bus
from services.directory import DirectorySettings, open_directory
from services.route.ask import ask_route
from services.route.route_settings import RouteSettings

_COLOURS = {"chosen": "green", "eligible": "default", "full": "yellow", "left out": "red"}
_NUMBERS = ("hit", "load", "total", "wait", "seat", "slowdown", "work", "shortage")


async def show_route(settings: RouteSettings, console: Console, shutdown: asyncio.Event) -> None:
    """
    Raises:
        InvalidSetting: there is no such mesh, or nothing was asked.
        KvmeshError: the router refuses, or cannot be asked.
    """
    address = settings.address
    bus_settings = BusSettings(url=address.nats_url, connect_timeout_s=settings.limit_s)
    directory_settings = DirectorySettings(
        endpoints=address.etcd_endpoint.split(","), connect_timeout_s=settings.limit_s
    )
    async with (
        open_bus(bus_settings, "kvmesh-route") as bus,
        open_directory(directory_settings) as directory,
    ):
        explained = await ask_route(settings, bus, directory, address.ns)
    if settings.json:
        text = msgspec.json.format(msgspec.json.encode(explained), indent=2).decode()
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    console.print(_choice(explained), markup=False, highlight=False)
    if settings.explain:
        console.print(_terms_table(explained))


def _choice(explained: Explained) -> str:
    choice = explained.worker or "nobody yet: every eligible worker is full"
    return f"{explained.num_tokens} tokens go to {choice} ({explained.policy}, by router {explained.router})"


def _terms_table(explained: Explained) -> Table:
    """Seconds, but for hit tokens and load."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for left in ("worker", "verdict"):
        table.add_column(left, overflow="fold")
    for right in _NUMBERS:
        table.add_column(right, justify="right", no_wrap=True)
    table.add_column("prefill")
    for one in explained.workers:
        seconds = (one.total_s, one.wait_s, one.seat_s, one.slowdown_s, one.work_s, one.shortage_s)
        table.add_row(
            one.worker,
            Text(one.verdict, style=_COLOURS[one.verdict]),
            str(one.hit_tokens),
            f"{one.load:.2f}",
            *(f"{value:.3f}" for value in seconds),
            "remote" if one.is_remote else "local",
        )
    return table
