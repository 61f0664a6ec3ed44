"""Promised hits against real ones, of the same requests; an alarm when they part."""

import pytest

from proto.reports import LoadReport
from proto.requests import Decision
from proto.roles import Role, WorkerState
from router.hit_metrics import WINDOW_S, WINDOW_TOKENS, HitMetrics
from services.metrics import Metrics, RouterMetrics


class Scene:
    """One worker, which takes what router `r` sends it; `now_s` goes on a second with each report."""

    def __init__(self) -> None:
        self.metrics = Metrics("router", "r")
        self.hits = HitMetrics(self.metrics, RouterMetrics(self.metrics))
        self.now_s = 0.0
        self.number = 0
        self.hit_tokens = 0
        self.report()

    def serve(self, promised: int, real: int) -> None:
        self.choose(promised)
        self.hit_tokens += real
        self.report()

    def choose(self, promised: int) -> None:
        self.number += 1
        self.hits.promise(Decision("r", self.number, "w", 1, promised))

    def report(self, role: Role = Role.DECODE, included: int | None = None) -> None:
        self.now_s += 1.0
        decisions = {"r": self.number if included is None else included}
        report = LoadReport(
            "w", "m", "life", 1, role, WorkerState.READY, hit_tokens=self.hit_tokens, decisions=decisions
        )
        self.hits.report(report, self.now_s)

    def value(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(f"kvmesh_route_{name}_total")
        assert value is not None
        return value

    @property
    def num_alarms(self) -> float:
        return self.value("hit_alarms")


def test_hits_are_counted_once_a_report_includes_their_choice() -> None:
    scene = Scene()
    scene.choose(100)
    scene.report(included=0)
    assert scene.value("promised_hit_tokens") == 0
    scene.hit_tokens = 96
    scene.report()
    assert (scene.value("promised_hit_tokens"), scene.value("real_hit_tokens")) == (100, 96)


def test_a_choice_that_was_not_taken_promised_nothing() -> None:
    scene = Scene()
    scene.choose(100)
    scene.hits.withdraw("w", "r", scene.number)
    scene.report()
    assert scene.value("promised_hit_tokens") == 0


@pytest.mark.parametrize(
    ("promised", "real", "num_alarms"),
    [(1000, 990, 0), (1000, 760, 0), (1000, 740, 1), (1000, 0, 1), (0, 1000, 1), (740, 1000, 1), (0, 0, 0)],
)
def test_the_alarm_counts_windows_in_which_the_two_differ_by_a_quarter(
    promised: int, real: int, num_alarms: int
) -> None:
    scene = Scene()
    for _ in range(1 + -(-WINDOW_TOKENS // 1000)):
        scene.serve(promised, real)
    assert scene.num_alarms == num_alarms


def test_no_window_is_over_before_its_time_and_its_tokens() -> None:
    scene = Scene()
    for _ in range(int(WINDOW_S) - 1):
        scene.serve(WINDOW_TOKENS, 0)
    assert scene.num_alarms == 0
    scene.serve(0, 0)
    assert scene.num_alarms == 1
    for _ in range(100):
        scene.serve(1, 0)
    assert scene.num_alarms == 1


def test_hits_that_come_later_than_their_promises_raise_no_alarm() -> None:
    scene = Scene()
    scene.serve(10 * WINDOW_TOKENS, 0)
    for _ in range(int(WINDOW_S)):
        scene.serve(0, WINDOW_TOKENS)
    assert scene.num_alarms == 0


def test_hits_of_jobs_are_nobodys_promise() -> None:
    scene = Scene()
    for _ in range(20):
        scene.hit_tokens += WINDOW_TOKENS
        scene.report(Role.PREFILL)
    scene.report()
    scene.report()
    assert scene.value("real_hit_tokens") == 0
    assert scene.num_alarms == 0


def test_another_life_begins_another_account() -> None:
    scene = Scene()
    scene.choose(500)
    scene.hits.begin_life("w")
    scene.hit_tokens = 7000
    scene.report()
    assert (scene.value("promised_hit_tokens"), scene.value("real_hit_tokens")) == (0, 0)
