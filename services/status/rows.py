"""One worker as one line: the newest of what its card and its last report say."""

from collections.abc import Mapping

import msgspec

from proto.cards import WorkerCard
from proto.reports import LoadReport
from proto.roles import Order, Role, newness


class WorkerRow(msgspec.Struct, frozen=True):
    """
    `wanted` is the role that it is on its way to; empty when it is on none. `strategy` is how KV reaches its
    pool; empty while its card is not there.

    Units: `hit_rate` share of prompt tokens found in the prefix cache; `tokens_rate` tokens a second, of a
    decode worker over its running sequences, of a prefill worker while it prefills; 0 until measured.
    """

    worker: str
    model: str
    role: str
    state: str
    epoch: int
    host: str
    is_beating: bool
    num_running: int = 0
    num_waiting: int = 0
    num_jobs: int = 0
    used_blocks: int = 0
    cached_blocks: int = 0
    total_blocks: int = 0
    hit_rate: float = 0.0
    tokens_rate: float = 0.0
    wanted: str = ""
    strategy: str = ""


def make_rows(
    cards: Mapping[str, WorkerCard],
    reports: Mapping[str, LoadReport],
    beating: set[str],
    orders: Mapping[str, Order],
) -> list[WorkerRow]:
    """A row for everyone who has a card or beats, by role and name."""
    names = cards.keys() | (reports.keys() & beating)
    rows = [
        _with_order(_make_row(name, cards.get(name), reports.get(name), name in beating), orders.get(name))
        for name in names
    ]
    return sorted(rows, key=lambda row: (row.model, row.role, row.worker))


def _make_row(name: str, card: WorkerCard | None, report: LoadReport | None, is_beating: bool) -> WorkerRow:
    if card is not None and report is not None and card.incarnation != report.incarnation:
        report = None  # of a life before
    words: list[WorkerCard | LoadReport] = [word for word in (card, report) if word is not None]
    newest = max(words, key=lambda word: newness(word.epoch, word.change, word.state))
    row = WorkerRow(
        worker=name,
        model=newest.model,
        role=newest.role.value,
        state=newest.state.value,
        epoch=newest.epoch,
        host=card.host if card else "",
        is_beating=is_beating,
        total_blocks=card.num_blocks if card else 0,
        strategy=card.strategy if card else "",
    )
    return row if report is None else _with_load(row, report)


def _with_order(row: WorkerRow, order: Order | None) -> WorkerRow:
    if order is None or order.epoch <= row.epoch:
        return row
    return msgspec.structs.replace(row, wanted=order.role.value)


def _with_load(row: WorkerRow, report: LoadReport) -> WorkerRow:
    return msgspec.structs.replace(
        row,
        num_running=report.num_running,
        num_waiting=report.num_waiting,
        num_jobs=report.num_jobs,
        used_blocks=report.total_blocks - report.free_blocks,
        cached_blocks=report.cached_blocks,
        total_blocks=report.total_blocks,
        hit_rate=report.hit_tokens / report.prompt_tokens if report.prompt_tokens else 0.0,
        tokens_rate=_tokens_rate(report),
    )


def _tokens_rate(report: LoadReport) -> float:
    if report.role is Role.PREFILL:
        return report.prefill_rate
    return report.num_running / report.decode_step_s if report.decode_step_s else 0.0
