"""How the command line starts a worker."""

import asyncio

from services.entry import ProcessEntry
from workers.settings import WorkerSettings


async def _run(settings: WorkerSettings, shutdown: asyncio.Event) -> None:
    from workers.process import run_worker

    await run_worker(settings, shutdown)


ENTRY = ProcessEntry("worker", "worker", WorkerSettings, _run)
