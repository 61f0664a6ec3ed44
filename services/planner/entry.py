"""How `kvmesh planner` starts."""

from asyncio import Event

from services.entry import ProcessEntry
from services.planner.settings import PlannerSettings


async def _run(settings: PlannerSettings, shutdown: Event) -> None:
    from services.planner.service import run_planner

    await run_planner(settings, shutdown)


ENTRY = ProcessEntry(kind="planner", section="planner", settings=PlannerSettings, run=_run)
