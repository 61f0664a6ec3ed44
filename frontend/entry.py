"""How the command line starts a frontend."""

import asyncio

from frontend.settings import FrontendSettings
from services.entry import ProcessEntry


async def _run(settings: FrontendSettings, shutdown: asyncio.Event) -> None:
    from frontend.service import run_frontend

    await run_frontend(settings, shutdown)


ENTRY = ProcessEntry(kind="frontend", section="frontend", settings=FrontendSettings, run=_run)
