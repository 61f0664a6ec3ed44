"""How it looks: a table that stays on a terminal, a line now and then anywhere else."""

import asyncio

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from proto.roles import Role
from services.demo.scene import LastMove, Scene, Sight
from services.demo.swing import NUM_WORKERS
from services.replay.report import Limits
from services.status.tables import workers_table

REFRESH_S = 0.5
LINE_S = 3.0
_BARS = "▁▂▃▄▅▆▇█"


async def show_scene(scene: Scene, console: Console, limits: Limits, shutdown: asyncio.Event) -> None:
    """Until `shutdown` is set."""
    if console.is_terminal:
        await _show_live(scene, console, limits, shutdown)
    else:
        await _show_lines(scene, console, limits, shutdown)


async def _show_live(scene: Scene, console: Console, limits: Limits, shutdown: asyncio.Event) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(as_view(await scene.look(), limits), refresh=True)
            if await _is_set_within(shutdown, REFRESH_S):
                return


async def _show_lines(scene: Scene, console: Console, limits: Limits, shutdown: asyncio.Event) -> None:
    while True:
        line = as_line(await scene.look(), limits)
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        if await _is_set_within(shutdown, LINE_S):
            return


async def _is_set_within(event: asyncio.Event, limit_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), limit_s)
    except TimeoutError:
        return event.is_set()
    return True


def as_line(sight: Sight, limits: Limits) -> str:
    traffic = sight.traffic
    return (
        f"load {sight.mix.name}; prefill {sight.count(Role.PREFILL)}, decode {sight.count(Role.DECODE)};"
        f" {sight.num_in_flight} in flight; TTFT p90 {_seconds(traffic.ttft_s)} of {_seconds(limits.ttft_s)},"
        f" ITL p90 {_seconds(traffic.itl_s)} of {_seconds(limits.itl_s)}; {_told(sight.last_move)}"
    )


def as_view(sight: Sight, limits: Limits) -> Group:
    """It fits a terminal of 80 columns and 24 lines."""
    mix, traffic = sight.mix, sight.traffic
    load = Text.assemble(
        ("load     ", "dim"),
        (f"{mix.name}: ", "bold"),
        f"{traffic.request_rate:.1f} requests/s of {mix.prompt_tokens} tokens in, {mix.answer_tokens} out",
    )
    feels = Text.assemble(
        ("clients  ", "dim"),
        f"{sight.num_in_flight} in flight   TTFT p90 ",
        _within(traffic.ttft_s, limits.ttft_s),
        "   ITL p90 ",
        _within(traffic.itl_s, limits.itl_s),
    )
    roles = Text.assemble(
        ("prefill  ", "dim"), ("".join(map(_bar, sight.history)), "cyan"), f" {sight.count(Role.PREFILL)}"
    )
    planner = Text.assemble(("planner  ", "dim"), _told(sight.last_move))
    return Group(load, feels, roles, planner, "", workers_table(sight.rows))


def _bar(num_prefill: int) -> str:
    return _BARS[min(num_prefill * len(_BARS) // (NUM_WORKERS + 1), len(_BARS) - 1)]


def _within(value_s: float, limit_s: float) -> Text:
    colour = "green" if value_s <= limit_s else "red"
    return Text(f"{_seconds(value_s)} of {_seconds(limit_s)}", style=colour)


def _seconds(value_s: float) -> str:
    """0 is not known."""
    if not value_s:
        return "-"
    return f"{value_s * 1e3:.0f} ms" if value_s < 1.0 else f"{value_s:.1f} s"


def _told(move: LastMove | None) -> str:
    if move is None:
        return "no move yet"
    order = move.order
    return f"{order.worker} to {order.role}, {move.age_s:.0f} s ago, {move.state}: {order.reason}"
