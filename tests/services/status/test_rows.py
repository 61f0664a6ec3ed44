"""One worker as one line: the newest word wins, and `leaving` is final."""

from io import StringIO

import msgspec
from rich.console import Console

from proto.cards import KvClass, WorkerCard
from proto.reports import LoadReport
from proto.roles import Order, Role, WorkerState
from services.status.rows import make_rows
from services.status.tables import workers_table


def _card(worker: str = "w", epoch: int = 1, state: WorkerState = WorkerState.READY) -> WorkerCard:
    return WorkerCard(
        worker=worker,
        model="m",
        role=Role.DECODE,
        epoch=epoch,
        incarnation="i",
        state=state,
        kv_class=KvClass("digest", "float32", 16),
        num_blocks=100,
        max_sequences=8,
        host="here",
    )


def _report(
    worker: str = "w",
    epoch: int = 1,
    state: WorkerState = WorkerState.READY,
    incarnation: str = "i",
    role: Role = Role.PREFILL,
) -> LoadReport:
    return LoadReport(
        worker=worker,
        model="m",
        incarnation=incarnation,
        epoch=epoch,
        role=role,
        state=state,
        num_running=4,
        total_blocks=100,
        free_blocks=75,
        decode_step_s=0.02,
        prefill_rate=800.0,
        hit_tokens=30,
        prompt_tokens=120,
    )


def test_the_later_epoch_says_the_role() -> None:
    later_report = make_rows({"w": _card(epoch=1)}, {"w": _report(epoch=2)}, {"w"}, {})[0]
    later_card = make_rows({"w": _card(epoch=3)}, {"w": _report(epoch=2)}, {"w"}, {})[0]
    assert (later_report.role, later_report.epoch) == ("prefill", 2)
    assert (later_card.role, later_card.epoch) == ("decode", 3)


def test_leaving_is_final_whoever_says_it() -> None:
    leaving = WorkerState.LEAVING
    assert make_rows({"w": _card(state=leaving)}, {"w": _report(epoch=9)}, {"w"}, {})[0].state == "leaving"
    assert make_rows({"w": _card(epoch=9)}, {"w": _report(state=leaving)}, {"w"}, {})[0].state == "leaving"


def test_load_becomes_rates_and_used_blocks() -> None:
    row = make_rows({"w": _card()}, {"w": _report()}, {"w"}, {})[0]
    assert (row.used_blocks, row.total_blocks, row.num_running) == (25, 100, 4)
    assert (row.hit_rate, row.tokens_rate) == (0.25, 800.0)
    decoding = make_rows({"w": _card()}, {"w": _report(role=Role.DECODE)}, {"w"}, {})[0]
    assert decoding.tokens_rate == 200.0


def test_a_report_of_an_earlier_life_is_not_counted() -> None:
    row = make_rows({"w": _card()}, {"w": _report(epoch=5, incarnation="before")}, {"w"}, {})[0]
    assert (row.epoch, row.num_running, row.total_blocks) == (1, 0, 100)


def test_who_beats_without_a_card_is_shown_and_who_does_neither_is_not() -> None:
    rows = make_rows({"a": _card("a")}, {"b": _report("b"), "c": _report("c")}, {"b"}, {})
    assert [(row.worker, row.is_beating) for row in rows] == [("a", False), ("b", True)]


def test_a_row_says_which_role_a_worker_is_on_its_way_to() -> None:
    order = Order("w", Role.PREFILL, 2)
    assert make_rows({"w": _card(epoch=1)}, {}, {"w"}, {"w": order})[0].wanted == "prefill"
    assert make_rows({"w": _card(epoch=2)}, {}, {"w"}, {"w": order})[0].wanted == ""


def test_of_words_of_one_epoch_the_one_after_more_changes_is_the_newer() -> None:
    draining = msgspec.structs.replace(_card(state=WorkerState.DRAINING), change=1)
    back = msgspec.structs.replace(_report(), change=2)
    assert make_rows({"w": draining}, {"w": back}, {"w"}, {})[0].state == "ready"


def test_a_line_below_names_those_whose_kv_goes_by_way_of_the_host() -> None:
    staged = msgspec.structs.replace(_card("staged"), strategy="host")
    rows = make_rows({"staged": staged, "plain": _card("plain")}, {}, set(), {})
    assert [row.strategy for row in rows] == ["direct", "host"]
    output = StringIO()
    console = Console(file=output, width=80)
    console.print(workers_table(rows))
    console.print(workers_table(rows[:1]))
    assert output.getvalue().count("by way of the host's memory: staged\n") == 1
    assert output.getvalue().count("by way of") == 1
