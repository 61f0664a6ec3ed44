"""How `kvmesh router` starts."""

from asyncio import Event

from router.settings import RouterSettings
from services.entry import ProcessEntry


async def _run(settings: RouterSettings, shutdown: Event) -> None:
    from router.service import run_router

    await run_router(settings, shutdown)


ENTRY = ProcessEntry(kind="router", section="router", settings=RouterSettings, run=_run)
