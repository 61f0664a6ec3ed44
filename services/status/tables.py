"""How the lines look: tables for people, JSON for programs."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from proto.control import BlockHolding, Holdings
from services.status.rows import WorkerRow

_COLOURS = {"ready": "green", "draining": "yellow", "leaving": "red", "silent": "red"}
_NUMBERS = ("epoch", "running", "waiting", "jobs", "blocks", "hits", "tok/s")


def workers_table(rows: Sequence[WorkerRow]) -> Group:
    """A table for each model; it fits a terminal of 80 columns."""
    models = sorted({row.model for row in rows})
    if not models:
        return Group("no workers")
    return Group(*(_model_table(model, [row for row in rows if row.model == model]) for model in models))


def _model_table(model: str, rows: Sequence[WorkerRow]) -> Table:
    title = Text(model, style="bold")
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim"
    )
    for left in ("worker", "role", "state"):
        table.add_column(left, overflow="fold")
    for right in _NUMBERS:
        table.add_column(right, justify="right", no_wrap=True)
    for row in rows:
        state = row.state if row.is_beating else "silent"
        table.add_row(
            row.worker,
            row.role,
            Text(state, style=_COLOURS[state]),
            str(row.epoch),
            str(row.num_running),
            str(row.num_waiting),
            str(row.num_jobs),
            f"{row.used_blocks}/{row.total_blocks}",
            f"{row.hit_rate:.0%}",
            f"{row.tokens_rate:.0f}",
        )
    return table


def pools_table(holdings: Mapping[str, Holdings | None]) -> Table:
    """A line for each grant, pin and quarantine, and one for each pool."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for left in ("worker", "what", "name", "holder"):
        table.add_column(left, no_wrap=True)
    for right in ("blocks", "age"):
        table.add_column(right, justify="right")
    for worker, held in holdings.items():
        if held is None:
            table.add_row(worker, "no answer", "", "", "", "")
            continue
        table.add_row(worker, "pool", "", "", f"{held.free_blocks} free of {held.total_blocks}", "")
        for what, entries in _by_kind(held).items():
            for entry in entries:
                table.add_row(
                    worker, what, entry.name, entry.holder, str(entry.num_blocks), f"{entry.age_s:.1f} s"
                )
    return table


def _by_kind(held: Holdings) -> dict[str, list[BlockHolding]]:
    return {"grant": held.granted, "pin": held.pinned, "quarantine": held.quarantined}


def as_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
