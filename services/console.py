"""The bus, for one command of an operator, who is told each second what it waits for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import typer

from services.bus import Bus, BusSettings, open_bus
from services.patience import Wait, open_wait

ASK_LIMIT_S = 20.0
"""How long a worker may take to answer: it asks the directory, which may be slow."""
CONNECT_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Console:
    """`wait` is for what the command waits for: nothing, at first."""

    bus: Bus
    wait: Wait


@asynccontextmanager
async def open_console(nats_url: str, command: str) -> AsyncIterator[Console]:
    """Told on stderr, aside from what the command puts out. Raises as `open_bus`."""
    settings = BusSettings(url=nats_url, connect_timeout_s=CONNECT_LIMIT_S)
    async with (
        open_wait(_say_aside, f"{nats_url} does not answer yet") as wait,
        open_bus(settings, f"kvmesh-{command}") as bus,
    ):
        wait.what = ""
        yield Console(bus, wait)
        wait.what = ""


def _say_aside(words: str) -> None:
    typer.echo(words, err=True)
