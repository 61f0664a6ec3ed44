"""The arithmetic of the planner's benchmark, on runs that are made up."""

from pathlib import Path

import pytest

from services.demo.swing import ANSWERS, LIMITS, PROMPTS, swing
from services.replay.reading import Reading
from services.replay.report import Limits
from tests.perf.planned_mesh import Run
from tests.perf.planner import make_story
from tests.perf.planner_figures import (
    Asked,
    RolesAt,
    count_moves,
    find_recovery_s,
    good_share,
    list_asked,
    roles_between,
)
from tests.perf.planner_picture import draw_story

HISTORY = [RolesAt(-5.0, 4), RolesAt(3.0, 5), RolesAt(8.0, 6), RolesAt(20.0, 5)]


def _reading(due_s: float, ttft_s: float, itl_s: float, error: str = "") -> Reading:
    first_s = due_s + ttft_s
    return Reading(due_s=due_s, first_s=first_s, last_s=first_s + 10 * itl_s, num_out=11, error=error)


def test_a_request_is_good_that_kept_both_limits_in_the_time_of_the_trace() -> None:
    readings = [
        _reading(100.0, 0.4, 0.04),
        _reading(101.0, 0.6, 0.04),
        _reading(102.0, 0.4, 0.06),
        _reading(103.0, 0.0, 0.0, "503 no_worker"),
    ]
    asked = list_asked(readings, 99.0, Limits(ttft_s=2.0, itl_s=0.2), speed=4.0)
    assert [one.at_s for one in asked] == [4.0, 8.0, 12.0, 16.0]
    assert [one.is_good for one in asked] == [True, False, False, False]
    assert [one.ttft_s for one in asked] == pytest.approx([1.6, 2.4, 1.6, 0.0])
    assert good_share(asked) == 0.25


def test_a_recovery_is_the_first_window_that_is_good_again() -> None:
    bad_until_s = 57.0
    asked = [Asked(0.5 * number, is_good=not 40.0 <= 0.5 * number < bad_until_s) for number in range(200)]
    assert find_recovery_s(asked, 40.0, 40.0, 5.0) == pytest.approx(17.0, abs=0.5)
    assert find_recovery_s(asked, 60.0, 40.0, 5.0) == 0.0


def test_who_does_not_recover_is_told_the_whole_phase() -> None:
    asked = [Asked(float(number), is_good=number < 40 or number >= 80) for number in range(100)]
    assert find_recovery_s(asked, 40.0, 40.0, 5.0) == 40.0


def test_moves_are_counted_within_a_time() -> None:
    assert count_moves(HISTORY, 0.0, 30.0) == 3
    assert count_moves(HISTORY, 3.0, 20.0) == 1
    assert roles_between(HISTORY, 5.0, 15.0) == [RolesAt(5.0, 5), RolesAt(8.0, 6)]


def test_the_load_swings_as_stated() -> None:
    trace = swing((PROMPTS, ANSWERS), 100.0, seed=3)
    first = [request for request in trace if request.timestamp < 100e3]
    second = trace[len(first) :]
    for some, mix in ((first, PROMPTS), (second, ANSWERS)):
        assert len(some) == pytest.approx(100 * mix.rate_per_s, rel=0.2)
        assert sum(one.input_length for one in some) / len(some) == pytest.approx(mix.prompt_tokens, rel=0.1)
        assert sum(one.output_length for one in some) / len(some) == pytest.approx(mix.answer_tokens, rel=0.1)
    ids = [block for one in trace for block in one.hash_ids]
    assert len(ids) == len(set(ids))
    assert trace == sorted(trace, key=lambda one: one.timestamp)


def test_a_run_becomes_a_small_picture(tmp_path: Path) -> None:
    asked = [
        Asked(0.5 * number, number % 7 > 0, LIMITS.ttft_s / 2, LIMITS.itl_s / 2) for number in range(480)
    ]
    path = tmp_path / "planner.png"
    draw_story(path, make_story(Run(asked, HISTORY), Run(asked[::2], []), 6))
    written = path.read_bytes()
    assert written.startswith(b"\x89PNG")
    assert len(written) < 150_000
