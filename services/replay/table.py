"""The figures of servers side by side, as a table for people."""

from collections.abc import Callable, Sequence

from rich.table import Table

from services.replay.report import Limits, Report, Spread

MAX_WORKERS = 16
"""More workers than this are told by their spread, not by name."""

_Figure = Callable[[Report], float | None]


def make_table(title: str, reports: Sequence[Report], limits: Limits) -> Table:
    """A column for each report; with two of them a last one says what the second is of the first."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for report in reports:
        table.add_column(report.label, justify="right")
    if len(reports) == 2:
        table.add_column("ratio", justify="right")
    for name, unit, figure in _figures(limits):
        values = [figure(report) for report in reports]
        table.add_row(name, *(_shown(value, unit) for value in values), *_ratio_of(values))
    _add_errors(table, reports)
    _add_shares(table, reports)
    return table


def _figures(limits: Limits) -> list[tuple[str, str, _Figure]]:
    good = f"TTFT ≤ {limits.ttft_s * 1e3:g} ms, ITL ≤ {limits.itl_s * 1e3:g} ms"
    return [
        ("requests answered", "", lambda report: report.num_answered),
        ("requests a second", "", lambda report: report.requests_per_s),
        ("tokens a second", "", lambda report: report.tokens_per_s),
        *_spread_figures("TTFT", lambda report: report.ttft_s),
        *_spread_figures("ITL", lambda report: report.itl_s),
        ("hit rate", "%", lambda report: report.hit_rate),
        ("prefilled remotely", "%", lambda report: report.remote_share),
        (f"good ({good})", "%", lambda report: report.good_share),
        ("goodput, requests a second", "", lambda report: report.goodput_per_s),
        ("player late, p99", "ms", lambda report: report.late_s.p99 if report.late_s else None),
    ]


def _spread_figures(name: str, spread: Callable[[Report], Spread | None]) -> list[tuple[str, str, _Figure]]:
    def figure(field: str) -> _Figure:
        return lambda report: getattr(found, field) if (found := spread(report)) else None

    return [(f"{name} {field}", "ms", figure(field)) for field in Spread.__struct_fields__]


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "%":
        return f"{value * 100:.1f} %"
    if unit == "ms":
        return f"{value * 1e3:.1f} ms"
    return f"{value}" if isinstance(value, int) else f"{value:.2f}"


def _ratio_of(values: Sequence[float | None]) -> list[str]:
    if len(values) != 2:
        return []
    first, second = values
    return [f"{second / first:.2f}" if first and second is not None else "-"]


def _add_errors(table: Table, reports: Sequence[Report]) -> None:
    table.add_section()
    for name in sorted({name for report in reports for name in report.errors}):
        table.add_row(f"failed: {name}", *(str(report.errors.get(name, 0)) for report in reports))


def _add_shares(table: Table, reports: Sequence[Report]) -> None:
    table.add_section()
    workers = sorted({worker for report in reports for worker in report.shares})
    if len(workers) <= MAX_WORKERS:
        for worker in workers:
            shares = (_shown(report.shares.get(worker), "%") for report in reports)
            table.add_row(f"share of {worker}", *shares)
        return
    table.add_row("workers that answered", *(str(len(report.shares)) for report in reports))
    table.add_row(
        "smallest share", *(_shown(min(report.shares.values(), default=None), "%") for report in reports)
    )
    table.add_row(
        "largest share", *(_shown(max(report.shares.values(), default=None), "%") for report in reports)
    )
