"""How the command line starts a process of simulated workers."""

import asyncio

from services.entry import ProcessEntry
from workers.simulated.settings import SimulateSettings


async def _run(settings: SimulateSettings, shutdown: asyncio.Event) -> None:
    from workers.simulated.process import run_simulation

    await run_simulation(settings, shutdown)


ENTRY = ProcessEntry("simulate", "simulate", SimulateSettings, _run)
