"""What is drawn and tabled of readings made by hand: a PNG that is one, a table that says who has what."""

import io
from array import array
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from proto.errors import InvalidSetting
from services.replay.picture import draw_picture
from services.replay.reading import Reading
from services.replay.report import Limits, make_report
from services.replay.session import Played
from services.replay.table import make_table

LIMITS = Limits()


def played(label: str, num_workers: int, num_requests: int = 40, error: str = "") -> Played:
    readings = [
        Reading(
            due_s=number / 10,
            sent_s=number / 10,
            first_s=number / 10 + 0.01 * (number + 1),
            last_s=number / 10 + 0.01 * (number + 2),
            ended_s=number / 10 + 1,
            gaps_s=array("f", [0.0, 0.01]),
            num_prompt=10,
            num_out=3,
            num_cached=5,
            worker=f"worker-{number % num_workers}",
            error=error,
        )
        for number in range(num_requests)
    ]
    return Played(make_report(label, readings, LIMITS), readings, 1.0)


def colours(path: Path) -> int:
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return len(image.getcolors(2**20) or [])


@pytest.mark.parametrize("num_workers", [1, 12, 40])
def test_a_picture_is_a_png_for_few_workers_and_for_many(tmp_path: Path, num_workers: int) -> None:
    path = tmp_path / "one.png"
    draw_picture(path, "a load", [played("kv", num_workers), played("round_robin", num_workers)], LIMITS)
    assert colours(path) > 50


def test_servers_with_other_workers_are_compared_by_rank(tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    draw_picture(path, "a load", [played("kv", 3), played("round_robin", 5)], LIMITS)
    assert colours(path) > 50


def test_a_server_that_answered_nothing_is_drawn_too(tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    draw_picture(path, "a load", [played("dead", 1, error="no_responder")], LIMITS)
    assert colours(path) > 10


def test_a_picture_that_cannot_be_written_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="none"):
        draw_picture(tmp_path / "none" / "one.png", "a load", [played("kv", 2)], LIMITS)


def table(*servers: Played) -> str:
    console = Console(file=io.StringIO(), width=160, markup=False)
    console.print(make_table("a load", [one.report for one in servers], LIMITS))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if name in line)
    return [cell.strip() for cell in line.split("│")[2:-1]]


def test_two_servers_stand_side_by_side_with_the_ratio_of_the_second_to_the_first() -> None:
    text = table(played("kv", 2, 40), played("round_robin", 4, 20))
    assert row(text, "requests answered") == ["40", "20", "0.50"]
    assert row(text, "hit rate") == ["50.0 %", "50.0 %", "1.00"]
    assert row(text, "share of worker-3") == ["-", "25.0 %", ""]
    assert row(text, "TTFT p50") == ["200.0 ms", "100.0 ms", "0.50"]


def test_what_was_not_measured_is_a_dash_and_failures_are_told_by_type() -> None:
    text = table(played("dead", 1, error="no_responder"), played("kv", 1))
    assert row(text, "TTFT p50") == ["-", "200.0 ms", "-"]
    assert row(text, "failed: no_responder") == ["40", "0", ""]


def test_many_workers_are_told_by_the_spread_of_their_shares() -> None:
    text = table(played("kv", 40), played("other", 20))
    assert row(text, "workers that answered") == ["40", "20", ""]
    assert row(text, "largest share") == ["2.5 %", "5.0 %", ""]
    assert "share of worker" not in text
