"""How the lines look: tables for people, JSON for programs."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from proto.control import BlockHolding, Holdings
from services.status.rows import WorkerRow

_COLOURS = {"ready": "green", "draining": "yellow", "leaving": "red", "silent": "red"}


def workers_table(rows: Sequence[WorkerRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for left in ("worker", "model", "role", "state"):
        table.add_column(left, no_wrap=True)
    for right in (
        "epoch",
        "running",
        "waiting",
        "jobs",
        "blocks",
        "hit rate",
        "decode tok/s",
        "prefill tok/s",
    ):
        table.add_column(right, justify="right")
    for row in rows:
        state = row.state if row.is_beating else "silent"
        table.add_row(
            row.worker,
            row.model,
            row.role,
            f"[{_COLOURS[state]}]{state}[/]",
            str(row.epoch),
            str(row.num_running),
            str(row.num_waiting),
            str(row.num_jobs),
            f"{row.used_blocks}/{row.total_blocks}",
            f"{row.hit_rate:.0%}",
            f"{row.decode_rate:.0f}",
            f"{row.prefill_rate:.0f}",
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
