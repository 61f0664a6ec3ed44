"""The plan: who moves, when nobody does, what is taken back, and how roles follow a load in pure time."""

from math import inf

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.reports import Beat, LoadReport
from proto.roles import Order, Role, WorkerState
from proto.traffic import ModelTraffic
from services.planner.observation import PLANNER, Observation, find_backlog
from services.planner.picture import Move, Picture, UnderWay, WorkerSeen
from services.planner.planning import Planning
from services.planner.rate_match import Capability, Limits, Load, Match, Split
from services.planner.settings import PlannerSettings
from services.planner.step_cost import StepCost
from services.planner.traffic_meter import Traffic
from tests.services.planner.world import MODEL, Mix, World

SETTINGS = PlannerSettings(ttft_s=1.0, itl_s=0.02)
RULES = SETTINGS.plan_rules
CAPABILITY = Capability(prefill_rate=20_000.0, step=StepCost(0.008, 0.0005), most_sequences=64.0)
PROMPTS = Load(90_000.0, 2_000.0, 1000.0)
ANSWERS = Load(9_000.0, 6_500.0, 1000.0)
LITTLE = Load(900.0, 65.0, 1000.0)
LONG_S = 1000.0


def _match(load: Load) -> Match:
    return Match(load, CAPABILITY, Limits(ttft_s=1.0, itl_s=0.02))


def _workers(split: Split, since_s: float = 0.0) -> list[WorkerSeen]:
    prefill = [WorkerSeen(f"p-{index}", Role.PREFILL, since_s, index) for index in range(split.prefill)]
    return prefill + [WorkerSeen(f"d-{index}", Role.DECODE, since_s, index) for index in range(split.decode)]


def _picture(split: Split, load: Load, **others: object) -> Picture:
    picture = Picture(workers=_workers(split), match=_match(load))
    return msgspec.structs.replace(picture, **others)


def _settled(picture: Picture) -> Planning:
    """A plan that has seen the same for long."""
    planning = Planning(RULES)
    planning.decide(picture, LONG_S - 200.0)
    planning.decide(picture, LONG_S - 100.0)
    return planning


def _decide(picture: Picture) -> tuple[str, Move | None]:
    decision = _settled(picture).decide(picture, LONG_S)
    return decision.action, decision.move


@pytest.mark.parametrize(
    ("split", "load", "move"),
    [
        (Split(4, 4), PROMPTS, Move("d-0", Role.PREFILL)),
        (Split(4, 4), ANSWERS, Move("p-0", Role.DECODE)),
        (Split(4, 4), LITTLE, None),
        (Split(1, 7), ANSWERS, None),
        (Split(1, 1), ANSWERS, None),
        (Split(0, 2), LITTLE, Move("d-0", Role.PREFILL)),
        (Split(2, 0), LITTLE, Move("p-0", Role.DECODE)),
    ],
)
def test_whoever_has_least_in_hand_goes_where_workers_are_short(
    split: Split, load: Load, move: Move | None
) -> None:
    assert _decide(_picture(split, load)) == ("hold" if move is None else "begin", move)


def test_of_those_alike_the_one_that_stayed_longest_goes() -> None:
    workers = [WorkerSeen("p-0", Role.PREFILL, 0.0)]
    workers += [WorkerSeen(f"d-{index}", Role.DECODE, 10.0 - index, 5) for index in range(3)]
    picture = msgspec.structs.replace(_picture(Split(1, 3), PROMPTS), workers=workers)
    assert _decide(picture) == ("begin", Move("d-2", Role.PREFILL))


def test_who_has_just_come_into_its_role_stays() -> None:
    fresh = _workers(Split(4, 4), since_s=LONG_S - RULES.min_stay_s + 1.0)
    picture = _picture(Split(4, 4), PROMPTS, workers=fresh)
    decision = _settled(picture).decide(picture, LONG_S)
    assert (decision.action, decision.reason) == (
        "hold",
        "no worker of the other role has stayed long enough",
    )
    assert _settled(picture).decide(picture, LONG_S + 1.0).action == "begin"


def test_what_is_right_for_a_moment_only_moves_nobody() -> None:
    planning, picture = Planning(RULES), _picture(Split(4, 4), PROMPTS)
    assert planning.decide(picture, 100.0).action == "hold"
    assert planning.decide(picture, 100.0 + RULES.confirm_s).action == "begin"


def test_what_may_be_mere_noise_has_to_last() -> None:
    picture = _picture(Split(4, 4), PROMPTS, noise=1.0)
    planning = Planning(RULES)
    planning.decide(picture, 0.0)
    assert planning.decide(picture, 30.0).action == "hold"
    assert planning.decide(picture, 10_000.0).action == "begin"


@pytest.mark.parametrize(("prompt_rate", "action"), [(68_000.0, "hold"), (144_000.0, "begin")])
def test_a_shortage_within_the_noise_has_to_last_and_a_plain_one_has_not(
    prompt_rate: float, action: str
) -> None:
    picture = _picture(Split(4, 4), Load(prompt_rate, 100.0, 1000.0), noise=0.2)
    planning = Planning(RULES)
    planning.decide(picture, LONG_S)
    assert planning.decide(picture, LONG_S + RULES.confirm_s).action == action
    assert planning.decide(picture, 100 * LONG_S).action == "begin"


def test_a_shortage_that_clients_feel_has_not_to_outlast_the_noise() -> None:
    """Decode workers fall behind by less than the noise of what comes; late tokens are no noise."""
    picture = _picture(Split(4, 4), Load(9_000.0, 4_800.0, 1000.0), noise=0.2)
    for itl_s, action in ((0.019, "hold"), (0.03, "begin")):
        felt, planning = msgspec.structs.replace(picture, itl_s=itl_s), Planning(RULES)
        planning.decide(felt, LONG_S)
        decision = planning.decide(felt, LONG_S + RULES.confirm_s)
        assert decision.action == action
        assert decision.now is not None
        assert decision.now.least < 1.0


def test_a_move_the_other_way_waits_until_it_has_cooled_down() -> None:
    planning = _settled(_picture(Split(4, 4), PROMPTS))
    planning.note_done(Move("d-0", Role.PREFILL), LONG_S)
    back = _picture(Split(5, 3), ANSWERS)
    planning.decide(back, LONG_S + 0.1)
    last_s = LONG_S + RULES.cool_down_s
    assert planning.decide(back, last_s - 0.1).reason == "a move the other way was a short while ago"
    assert planning.decide(back, last_s + 0.1).action == "begin"


def test_who_failed_is_left_alone_for_longer_each_time() -> None:
    picture = _picture(Split(4, 4), PROMPTS)
    planning, now_s = _settled(picture), LONG_S
    pauses_s = []
    for _ in range(3):
        failed = planning.decide(picture, now_s).move
        assert failed == Move("d-0", Role.PREFILL)
        planning.note_failed(failed, now_s)
        now_s += 1.0
        other = planning.decide(picture, now_s).move
        assert other == Move("d-1", Role.PREFILL)
        began_s = now_s
        while planning.decide(picture, now_s).move != failed:
            now_s += 1.0
        pauses_s.append(now_s - began_s + 1.0)
    assert pauses_s == [RULES.retry_s, 2 * RULES.retry_s, 4 * RULES.retry_s]


def _under_way(split: Split, load: Load, move: Move, *, is_ours: bool = True) -> Picture:
    """`split` is that of those which are not on their way."""
    return _picture(split, load, under_way=[UnderWay(move, is_ours)])


TO_PREFILL, TO_DECODE = Move("x", Role.PREFILL), Move("x", Role.DECODE)


@pytest.mark.parametrize(
    ("picture", "action"),
    [
        (_under_way(Split(4, 3), PROMPTS, TO_PREFILL), "hold"),
        (_under_way(Split(4, 3), ANSWERS, TO_PREFILL), "take_back"),
        (_under_way(Split(4, 3), LITTLE, TO_PREFILL), "take_back"),
        (_under_way(Split(1, 0), PROMPTS, TO_PREFILL), "take_back"),
        (_under_way(Split(0, 4), ANSWERS, TO_DECODE), "take_back"),
        (_under_way(Split(0, 4), LITTLE, TO_PREFILL), "hold"),
        (_under_way(Split(4, 3), ANSWERS, TO_PREFILL, is_ours=False), "hold"),
        (msgspec.structs.replace(_under_way(Split(4, 3), ANSWERS, TO_PREFILL), obstacle="silence"), "hold"),
    ],
)
def test_what_is_on_its_way_is_taken_back_when_its_reason_is_gone(picture: Picture, action: str) -> None:
    assert Planning(RULES).decide(picture, LONG_S).action == action


def test_late_tokens_are_a_need_where_the_rates_say_that_a_move_helps() -> None:
    load = Load(20_000.0, 3_700.0, 1000.0)
    met = _picture(Split(4, 4), load)
    assert _match(load).headroom(Split(4, 4)).least > RULES.short_below
    assert _decide(met)[0] == "hold"
    assert _decide(msgspec.structs.replace(met, itl_s=0.03)) == ("begin", Move("p-0", Role.DECODE))
    assert _decide(msgspec.structs.replace(met, ttft_s=2.0)) == ("begin", Move("p-0", Role.DECODE))
    assert _decide(msgspec.structs.replace(met, ttft_s=0.5, itl_s=0.01))[0] == "hold"


def test_nothing_is_done_before_something_is_measured_or_while_a_report_is_missing() -> None:
    assert _decide(_picture(Split(4, 4), PROMPTS, match=None))[0] == "hold"
    assert _decide(_picture(Split(4, 4), PROMPTS, obstacle="no fresh report of d-0"))[0] == "hold"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.floats(0.0, 1e6),
    st.floats(0.0, 1e5),
    st.floats(0.0, 0.2),
    st.floats(0.0, 5.0),
)
def test_no_move_leaves_too_few(
    prefill: int, num_decode: int, prompt_rate: float, output_rate: float, itl_s: float, ttft_s: float
) -> None:
    load = Load(prompt_rate, output_rate, 1000.0)
    picture = _picture(Split(prefill, num_decode), load, itl_s=itl_s, ttft_s=ttft_s)
    action, move = _decide(picture)
    if action == "begin":
        assert move is not None
        left = Split(prefill + move.step, num_decode - move.step)
        assert left.decode >= 1
        assert left.prefill >= 1 or prefill == 0 or num_decode == 0
    assert action != "take_back"


# What is observed.


def _report(worker: str, role: Role = Role.DECODE, **others: object) -> LoadReport:
    report = LoadReport(
        worker, MODEL, "life", 1, role, WorkerState.READY, max_sequences=64, prefill_rate=1000.0
    )
    return msgspec.structs.replace(report, **others)


def _frontend(num: int = 0) -> Beat:
    return Beat("f", "frontend", "f", traffic=[ModelTraffic(MODEL, num_begun=num)])


def _observed(*reports: LoadReport, now_s: float = 10.0) -> Observation:
    observation = Observation(SETTINGS.observation_rules)
    observation.hear("f", _frontend(), now_s)
    for report in reports:
        observation.hear(report.worker, report, now_s)
    return observation


def test_a_missing_report_is_an_obstacle_and_a_lost_process_is_none() -> None:
    observation = _observed(_report("a"), _report("b"))
    assert observation.look(10.0)[MODEL].obstacle == ""
    observation.hear("f", _frontend(), 14.0)
    observation.hear("a", _report("a"), 14.0)
    assert observation.look(14.0)[MODEL].obstacle == "no fresh report of b"
    observation.lose("b")
    assert observation.look(14.0)[MODEL].obstacle == ""
    observation.hear("a", _report("a"), 18.0)
    assert observation.look(18.0)[MODEL].obstacle == "no fresh report of f"
    observation.lose("f")
    assert observation.look(18.0)[MODEL].obstacle == "no frontend is heard"


def test_who_drains_is_not_counted_and_who_is_ordered_counts_as_what_it_will_be() -> None:
    observation = _observed(
        _report("a"), _report("b"), _report("c", state=WorkerState.DRAINING), _report("p", Role.PREFILL)
    )
    observation.note_orders({"b": Order("b", Role.PREFILL, 2, placed_by=PLANNER)})
    picture = observation.look(10.0)[MODEL]
    assert picture.split == Split(2, 1)
    assert [each.worker for each in picture.workers] == ["a", "p"]
    assert picture.under_way == [UnderWay(Move("b", Role.PREFILL), is_ours=True)]
    observation.hear("b", _report("b", Role.PREFILL, epoch=2), 11.0)
    picture = observation.look(11.0)[MODEL]
    assert (picture.split, picture.under_way) == (Split(2, 1), [])


def test_a_role_is_held_since_its_epoch_began_or_the_worker_did() -> None:
    observation = _observed(_report("a"))

    def since_s(now_s: float, epoch: int = 1, incarnation: str = "life") -> float:
        observation.hear("a", _report("a", epoch=epoch, incarnation=incarnation), now_s)
        return observation.look(now_s)[MODEL].workers[0].since_s

    assert since_s(12.0) == 10.0
    assert since_s(13.0, epoch=2) == since_s(14.0, epoch=2) == 13.0
    assert since_s(15.0, epoch=2, incarnation="another") == 15.0


def test_what_waits_for_a_place_is_work_for_decode_and_all_else_for_prefill() -> None:
    limits = Limits(ttft_s=1.0, itl_s=0.1)
    traffic = Traffic(
        prompt_rate=100.0, prompt_tokens=100.0, answer_tokens=50.0, num_waiting=20, waiting_tokens=2000.0
    )
    idle = find_backlog(traffic, [_report("a", num_running=5)], limits)
    assert (idle.prompt_tokens, idle.output_tokens) == (1900.0, 0.0)
    full = find_backlog(traffic, [_report("a", num_running=64, waiting_tokens=400)], limits)
    assert (full.prompt_tokens, full.output_tokens) == (300.0, 16 * 50.0)


# A mesh in pure time.

PROMPT_HEAVY = Mix(rate=40.0, prompt_tokens=2300.0, answer_tokens=46.0)
ANSWER_HEAVY = Mix(rate=13.0, prompt_tokens=700.0, answer_tokens=500.0)
EVEN = Mix(rate=20.0, prompt_tokens=1500.0, answer_tokens=200.0)
SPARSE = Mix(rate=1.0, prompt_tokens=9000.0, answer_tokens=900.0)
HOUR_S = 3600
TWO_PERIODS_S = 2 * SETTINGS.period_s


@pytest.mark.parametrize("mix", [PROMPT_HEAVY, ANSWER_HEAVY, EVEN, SPARSE])
def test_roles_come_to_rest_under_a_steady_load(mix: Mix) -> None:
    world = World(SETTINGS, Split(4, 4))
    world.run(mix, HOUR_S)
    late = [move for at_s, move in world.moves if at_s > 600.0]
    assert len(late) <= 1
    assert len(world.moves) <= 5


@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_the_load_is_answered_within_two_periods(seed: int) -> None:
    world = World(SETTINGS, Split(4, 4), seed)
    world.run(PROMPT_HEAVY, 300)
    for mix, role in ((ANSWER_HEAVY, Role.DECODE), (PROMPT_HEAVY, Role.PREFILL), (ANSWER_HEAVY, Role.DECODE)):
        stepped_s, before = world.now_s, len(world.moves)
        world.run(mix, 300)
        moves = world.moves[before:]
        assert {move.to for _, move in moves} == {role}
        assert len(moves) >= 4
        assert moves[3][0] <= stepped_s + TWO_PERIODS_S
        split = world.split
        assert min(split.prefill, split.decode) <= 2


def test_a_slow_swing_is_followed_with_few_moves() -> None:
    def swing(now_s: float) -> Mix:
        share = abs(now_s % 1200.0 / 600.0 - 1.0)
        return Mix(
            rate=13.0 + 27.0 * share,
            prompt_tokens=700.0 + 1600.0 * share,
            answer_tokens=500.0 - 454.0 * share,
        )

    world = World(SETTINGS, Split(4, 4))
    world.run(swing, 2400)
    assert 8 <= len(world.moves) <= 40


def test_faster_times_plan_alike() -> None:
    fast = msgspec.structs.replace(SETTINGS, speed_up=10.0)
    assert fast.plan_rules.cool_down_s == RULES.cool_down_s / 10
    assert fast.limits_of("m").itl_s == pytest.approx(0.002)
    assert fast.plan_rules.short_below == RULES.short_below


def test_limits_of_a_model_may_differ() -> None:
    chosen = PlannerSettings(limits=["org/m=1.5:0.05"])
    assert (chosen.limits_of("org/m").ttft_s, chosen.limits_of("org/m").itl_s) == (1.5, 0.05)
    assert chosen.limits_of("other").ttft_s == chosen.ttft_s


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (["org/m"], "is not model=ttft_s:itl_s"),
        (["m=0:0.05"], "both over 0"),
        (["m=1:1", "m=2:2"], "a model is there twice"),
    ],
)
def test_limits_that_say_nothing_are_refused(limits: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PlannerSettings(limits=limits)


def test_plenty_for_all_is_all_there_is_to_say_of_no_load() -> None:
    planning = Planning(RULES)
    decision = planning.decide(_picture(Split(4, 4), Load(0.0, 0.0, 0.0)), LONG_S)
    assert (decision.action, decision.reason) == ("hold", "the load is met")
    assert decision.now is not None
    assert decision.now.least == inf
    assert planning.best_split(_picture(Split(4, 4), Load(0.0, 0.0, 0.0))) is None
