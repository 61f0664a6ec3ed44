"""How the lines look: tables for people, JSON for programs."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from proto.control import BlockHolding, Holdings
from services.status.rows import WorkerRow

_COLOURS = {"ready": "green", "draining": "yellow", "leaving": "red", "silent": "red"}
_NUMBERS = ("epoch", "running", "waiting", "jobs", "blocks", "hits", "tok/s")
_POOL_NUMBERS = ("free", "active", "cached", "granted", "pinned", "quarantined", "total")


def workers_table(rows: Sequence[WorkerRow]) -> Group:
    """A table for each model, and a line for what is not as usual; it fits a terminal of 80 columns."""
    models = sorted({row.model for row in rows})
    if not models:
        return Group("no workers")
    tables = [_model_table(model, [row for row in rows if row.model == model]) for model in models]
    return Group(*tables, *_strategy_lines(rows))


def _strategy_lines(rows: Sequence[WorkerRow]) -> list[str]:
    """KV goes from pool to pool, but with these."""
    indirect = [row.worker for row in rows if row.strategy not in ("", "direct")]
    return [f"KV by way of the host's memory: {', '.join(indirect)}"] if indirect else []


def planners_lines(planners: Sequence[str]) -> list[str]:
    """One line below the table, or none; the planner that leads comes first in `planners`."""
    if not planners:
        return []
    others = f"; standing by: {len(planners) - 1}" if len(planners) > 1 else ""
    return [f"planner {planners[0]} leads{others}"]


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
            f"{row.role} → {row.wanted}" if row.wanted else row.role,
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


def pools_view(holdings: Mapping[str, Holdings | None]) -> Group:
    """A line for each pool; below it one for each grant, pin and quarantine, and each grant held."""
    if not holdings:
        return Group("no workers")
    pools = _blocks_table()
    lent = _lent_table()
    for worker, held in holdings.items():
        if held is None:
            pools.add_row(worker, "no answer")
            continue
        pools.add_row(worker, *map(str, _block_counts(held)))
        for row in _lent_rows(held):
            lent.add_row(worker, *row)
    return Group(pools, "", lent) if lent.row_count else Group(pools)


def _blocks_table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("worker", overflow="fold")
    for name in _POOL_NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _lent_table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for left in ("worker", "what", "name", "holder"):
        table.add_column(left, overflow="fold")
    for right in ("blocks", "age"):
        table.add_column(right, justify="right", no_wrap=True)
    return table


def _block_counts(held: Holdings) -> tuple[int, ...]:
    """In the order of `_POOL_NUMBERS`."""
    return (
        held.free_blocks,
        held.active_blocks,
        held.cached_blocks,
        _num_blocks(held.granted),
        _num_blocks(held.pinned),
        _num_blocks(held.quarantined),
        held.total_blocks,
    )


def _num_blocks(entries: Sequence[BlockHolding]) -> int:
    return sum(entry.num_blocks for entry in entries)


def _lent_rows(held: Holdings) -> Iterator[tuple[str, ...]]:
    by_kind = {"grant": held.granted, "pin": held.pinned, "quarantine": held.quarantined}
    for what, entries in by_kind.items():
        for entry in entries:
            yield what, entry.name, entry.holder, str(entry.num_blocks), f"{entry.age_s:.1f} s"
    for grant in held.held:
        yield "holds", grant, "itself", "", ""


def as_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
