"""Who could take a prefill job: workers that come, go and fail, and jobs that are on their way to them."""

from collections.abc import Callable

import msgspec
import pytest

from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from workers.roles.prefill_choice import There
from workers.roles.prefill_view import AVOID_FIRST_S, AVOID_MOST_S, PrefillView
from workers.roles.trips import ASSUMED_TRIP_S, FORGET_S


def report(
    worker: str,
    *,
    role: Role = Role.PREFILL,
    state: WorkerState = WorkerState.READY,
    model: str = "m",
    jobs_taken: int = 0,
    job_tokens: int = 0,
) -> LoadReport:
    return LoadReport(
        worker=worker,
        model=model,
        incarnation="one",
        epoch=1,
        role=role,
        state=state,
        job_tokens=job_tokens,
        jobs_taken=jobs_taken,
        prefill_rate=1000.0,
    )


def names(view: PrefillView) -> set[str]:
    return {other.worker for other in view.others({})}


def waiting_tokens(view: PrefillView) -> dict[str, float]:
    return {other.worker: other.waiting_tokens for other in view.others({})}


def trip_s(view: PrefillView) -> float:
    (other,) = view.others({})
    return other.trip_s


def go_silent(view: PrefillView) -> None:
    view.lose("p")


def drain(view: PrefillView) -> None:
    view.learn(report("p", state=WorkerState.DRAINING))


def leave(view: PrefillView) -> None:
    view.learn(report("p", state=WorkerState.LEAVING))


def switch_role(view: PrefillView) -> None:
    view.learn(report("p", role=Role.DECODE))


@pytest.mark.parametrize("go", [go_silent, drain, leave, switch_role])
def test_prefill_elsewhere_is_on_again_after_fifty_absences(go: Callable[[PrefillView], None]) -> None:
    view = PrefillView("m")
    for _ in range(50):
        view.learn(report("p"))
        assert names(view) == {"p"}
        go(view)
        assert names(view) == set()
    view.learn(report("p"))
    assert waiting_tokens(view) == {"p": 0}


def test_a_worker_is_seen_as_it_reports_and_with_the_prefix_that_it_holds() -> None:
    view = PrefillView("m")
    told = msgspec.structs.replace(
        report("p", job_tokens=300), waiting_tokens=20, zone="east", push_bytes_per_s=5e8
    )
    view.learn(told)
    assert view.others({"p": 64, "gone": 100}) == [There("p", 320, 1000.0, 5e8, 64, "east")]


def test_workers_of_other_models_and_lost_ones_are_not_asked() -> None:
    view = PrefillView("m")
    view.learn(report("other", model="n"))
    assert names(view) == set()
    view.learn(report("p"))
    view.lose("p")
    view.lose("p")
    assert names(view) == set()


def test_a_job_on_its_way_counts_until_a_report_includes_it() -> None:
    view = PrefillView("m")
    view.learn(report("p", jobs_taken=3))
    view.learn(report("idle"))
    view.note_asked("job", 500, "p")
    assert waiting_tokens(view) == {"p": 500, "idle": 0}
    view.learn(report("p", jobs_taken=4))
    assert waiting_tokens(view)["p"] == 500, "it has not said that this is the fourth"
    view.note_taken("job", 5)
    view.note_granted("job")
    assert waiting_tokens(view)["p"] == 500
    view.learn(report("p", jobs_taken=5, job_tokens=490))
    assert waiting_tokens(view)["p"] == 490


def test_a_job_is_counted_once_when_the_report_comes_before_the_answer() -> None:
    view = PrefillView("m")
    view.note_asked("job", 500, "p")
    view.learn(report("p", jobs_taken=1, job_tokens=500))
    view.note_taken("job", 1)
    assert waiting_tokens(view) == {"p": 500}


def test_a_job_that_ended_counts_no_more_though_the_last_report_has_it() -> None:
    view = PrefillView("m")
    for job, number in (("first", 1), ("second", 2)):
        view.note_asked(job, 500, "p")
        view.learn(report("p", jobs_taken=number, job_tokens=450 + 500 * (number - 1)))
        view.note_taken(job, number)
    assert waiting_tokens(view) == {"p": 950}
    view.note_ended("first")
    assert waiting_tokens(view) == {"p": 450}
    view.learn(report("p", jobs_taken=2, job_tokens=400))
    assert waiting_tokens(view) == {"p": 400}
    view.note_ended("second")
    assert waiting_tokens(view) == {"p": 0}


def test_a_job_in_the_queue_counts_a_share_everywhere_until_somebody_takes_it() -> None:
    view = PrefillView("m")
    for worker in ("a", "b"):
        view.learn(report(worker))
    view.note_asked("job", 500, "a")
    view.note_queued("job", 500)
    assert waiting_tokens(view) == {"a": 250, "b": 250}
    view.note_granted("job")
    assert waiting_tokens(view) == {"a": 0, "b": 0}


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_job_that_ended_or_whose_worker_is_lost_counts_no_more(is_taken: bool) -> None:
    view = PrefillView("m")
    for worker in ("a", "b"):
        view.learn(report(worker))
        view.note_asked(f"job of {worker}", 500, worker)
        if is_taken:
            view.note_taken(f"job of {worker}", 1)
    view.note_ended("job of a")
    view.note_ended("job of a")
    view.learn(msgspec.structs.replace(report("b"), incarnation="two"))
    view.note_taken("job of b", 1)
    assert waiting_tokens(view) == {"a": 0, "b": 0}


def test_who_fails_jobs_is_asked_less_and_less_until_one_lands() -> None:
    now_s = 100.0
    view = PrefillView("m", now_s=lambda: now_s)
    view.learn(report("p"))
    pauses_s = []
    for _ in range(12):
        view.avoid("p")
        assert names(view) == set()
        began_s = now_s
        while not names(view):
            now_s += 0.05
        pauses_s.append(now_s - began_s)
    assert pauses_s[0] <= AVOID_FIRST_S + 0.1
    assert AVOID_MOST_S / 2 <= max(pauses_s) <= AVOID_MOST_S + 0.1
    view.avoid("p")
    view.forgive("p")
    assert names(view) == {"p"}
    view.avoid("p")
    now_s += AVOID_FIRST_S
    assert names(view) == {"p"}


def test_another_worker_is_asked_meanwhile_and_a_successor_is_not_blamed() -> None:
    view = PrefillView("m", now_s=lambda: 100.0)
    view.learn(report("bad"))
    view.learn(report("good", job_tokens=1000))
    view.avoid("bad")
    assert names(view) == {"good"}
    view.learn(msgspec.structs.replace(report("bad"), incarnation="two"))
    assert names(view) == {"bad", "good"}


def test_who_has_kv_that_cannot_come_here_is_never_asked() -> None:
    view = PrefillView("m", lambda worker, incarnation: (worker, incarnation) != ("p", "one"))
    view.learn(report("p"))
    assert names(view) == set()
    view.learn(msgspec.structs.replace(report("p"), incarnation="two"))
    assert names(view) == {"p"}


def test_the_way_to_a_worker_is_as_long_as_jobs_take_until_they_ask_for_their_grant() -> None:
    now_s = 100.0
    view = PrefillView("m", now_s=lambda: now_s)

    def run_job(took_s: float) -> float:
        nonlocal now_s
        view.note_asked("job", 500, "p")
        now_s += took_s
        view.note_granted("job")
        view.note_ended("job")
        return trip_s(view)

    view.learn(report("p"))
    assert trip_s(view) == ASSUMED_TRIP_S
    assert ASSUMED_TRIP_S < run_job(0.5) < 0.5, "the first one had to meet its owner"
    ways_s = [run_job(0.03) for _ in range(40)]
    assert ways_s == sorted(ways_s, reverse=True)
    assert ways_s[-1] == pytest.approx(0.06, rel=0.01), "there, and back"


def test_a_measured_way_is_forgotten_after_a_while_and_with_its_worker() -> None:
    now_s = 100.0
    view = PrefillView("m", now_s=lambda: now_s)
    for age_s, is_known in ((FORGET_S - 1, True), (FORGET_S + 1, False)):
        view.learn(report("p"))
        view.note_asked("job", 500, "p")
        now_s += 5
        view.note_granted("job")
        now_s += age_s
        assert (trip_s(view) > ASSUMED_TRIP_S) == is_known
        view.lose("p")
        view.learn(report("p"))
        assert trip_s(view) == ASSUMED_TRIP_S


def test_what_a_job_waited_in_the_queue_is_no_part_of_the_way() -> None:
    now_s = 100.0
    view = PrefillView("m", now_s=lambda: now_s)
    view.learn(report("p"))
    view.note_asked("job", 500, "p")
    view.note_queued("job", 500)
    now_s += 4
    view.note_granted("job")
    assert trip_s(view) == ASSUMED_TRIP_S


def test_it_tells_when_the_last_prefill_worker_goes_or_has_another_role() -> None:
    view, told = PrefillView("m"), list[str]()
    view.on_empty(lambda: told.append("empty"))
    view.learn(report("a"))
    view.learn(report("b"))
    assert (view.epoch_of("a"), view.epoch_of("c")) == (1, 0)
    view.learn(report("a", role=Role.DECODE))
    assert (view.epoch_of("a"), told) == (0, [])
    view.lose("b")
    view.lose("b")
    assert told == ["empty"]
    view.learn(report("a"))
    view.learn(report("a", state=WorkerState.DRAINING))
    assert told == ["empty", "empty"]
