"""The command: one look, or a table that stays until it is told to end."""

import asyncio

from rich.console import Console, Group
from rich.live import Live

from services.mesh_settings import MeshSettings
from services.status.status_settings import StatusSettings, find_mesh
from services.status.tables import as_json, planners_lines, pools_view, workers_table
from services.status.view import MeshView, open_view


async def show_status(settings: StatusSettings, console: Console, shutdown: asyncio.Event) -> None:
    """
    Raises:
        InvalidSetting: there is no such mesh.
        Disconnected: its NATS or etcd is out of reach.
    """
    async with open_view(find_mesh(settings), settings.connect_limit_s) as view:
        await view.wait_beats(2 * MeshSettings().beat_s)
        if settings.pools:
            await _show_pools(settings, console, view)
        elif settings.once or settings.json or not console.is_terminal:
            await _show_once(settings, console, view)
        else:
            await _show_live(settings, console, view, shutdown)


async def _show_pools(settings: StatusSettings, console: Console, view: MeshView) -> None:
    holdings = await view.all_holdings()
    if settings.json:
        _print_raw(console, as_json(holdings))
    else:
        console.print(pools_view(holdings))


async def _show_once(settings: StatusSettings, console: Console, view: MeshView) -> None:
    rows = await view.look()
    if settings.json:
        _print_raw(console, as_json(rows))
    else:
        console.print(workers_table(rows), *planners_lines(await view.planners()))


async def _show_live(
    settings: StatusSettings, console: Console, view: MeshView, shutdown: asyncio.Event
) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while not shutdown.is_set():
            table = workers_table(await view.look())
            live.update(Group(table, *planners_lines(await view.planners())), refresh=True)
            try:
                await asyncio.wait_for(shutdown.wait(), settings.refresh_s)
            except TimeoutError:
                continue


def _print_raw(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
