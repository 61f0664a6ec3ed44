"""Remote or local: the terms, and what decides between them."""

import dataclasses

import pytest

from tests.workers.engine.engine_desk import Desk, spec_of
from workers.roles.prefill_choice import (
    ACROSS_ZONES,
    ASSUMED_BYTES_PER_S,
    ASSUMED_RATE,
    Choice,
    Here,
    PrefillRules,
    Prompt,
    Terms,
    There,
    choose_place,
    here_now,
    predict,
)
from workers.roles.trips import ASSUMED_TRIP_S

RULES = PrefillRules("predicted", min_tokens=128, slowdown=1.0, zone="east")
THRESHOLD = dataclasses.replace(RULES, mode="threshold")
LONG = Prompt(num_tokens=2000, cached_tokens=0, token_bytes=1000)
IDLE = Here(waiting_tokens=0, num_running=0, prefill_rate=1000.0)
BUSY = dataclasses.replace(IDLE, num_running=4)
FREE = There("free", 0, prefill_rate=1000.0, bytes_per_s=1e9, zone="east")


def choose(
    prompt: Prompt, here: Here, *others: There, has_room: bool = True, rules: PrefillRules = RULES
) -> Choice:
    return choose_place(prompt, here, others, has_room, rules)


def near(terms: Terms) -> dict[str, object]:
    return {name: pytest.approx(value) for name, value in dataclasses.asdict(terms).items()}


def test_every_term_is_tokens_over_a_rate_or_bytes_over_a_bandwidth() -> None:
    prompt = Prompt(num_tokens=2000, cached_tokens=400, token_bytes=1000)
    here = Here(waiting_tokens=300, num_running=3, prefill_rate=800.0)
    there = There("p", 500, 4000.0, bytes_per_s=1e6, prefix_tokens=160, zone="east", trip_s=0.02)
    terms = predict(prompt, here, there, 7.0, dataclasses.replace(RULES, slowdown=0.5))
    assert dataclasses.asdict(terms) == near(
        Terms(
            queue_here_s=300 / 800,
            compute_here_s=1600 / 800,
            harm_s=0.5 * 3 * 1600 / 800,
            trip_s=0.02,
            queue_there_s=500 / 4000,
            compute_there_s=1600 / 4000,
            # what it lacks of our prefix is pulled first; the push is slower than the compute beside it
            transfer_s=240_000 / 1e6 + (1_600_000 / 1e6 - 1600 / 4000),
        )
    )
    assert terms.here_s == pytest.approx(300 / 800 + 2.0 + 3.0)
    assert terms.there_s == pytest.approx(0.02 + 500 / 4000 + 0.24 + 1.6)


def test_a_push_that_keeps_up_with_the_compute_costs_nothing() -> None:
    assert predict(LONG, IDLE, FREE, 7.0, RULES).transfer_s == 0.0


def test_across_zones_kv_moves_slower() -> None:
    prompt = Prompt(num_tokens=2000, cached_tokens=1000, token_bytes=1000)
    afar = dataclasses.replace(FREE, zone="west")
    near_s = predict(prompt, IDLE, FREE, 7.0, RULES).transfer_s
    assert predict(prompt, IDLE, afar, 7.0, RULES).transfer_s == pytest.approx(near_s / ACROSS_ZONES)


def test_what_is_not_measured_is_assumed() -> None:
    new = There("new", 0, prefill_rate=0.0)
    slow = There("slow", 0, prefill_rate=500.0)
    nobody = choose(LONG, dataclasses.replace(BUSY, prefill_rate=0.0), new).terms
    assert nobody is not None
    assert nobody.compute_here_s == nobody.compute_there_s == 2000 / ASSUMED_RATE
    assert nobody.trip_s == ASSUMED_TRIP_S
    # with one that has measured: as fast as the fastest
    chosen = choose(LONG, BUSY, new, slow)
    assert chosen.worker == "new"
    assert chosen.terms is not None
    assert chosen.terms.compute_there_s == 2000 / BUSY.prefill_rate
    wide = Prompt(num_tokens=2000, cached_tokens=0, token_bytes=2e6)
    terms = predict(wide, IDLE, There("p", 0, 1000.0, zone="east"), 7.0, RULES)
    assert terms.transfer_s == pytest.approx(2000 * 2e6 / ASSUMED_BYTES_PER_S - 2.0)


@pytest.mark.parametrize("rules", [RULES, THRESHOLD])
def test_a_short_prompt_and_a_warm_one_stay(rules: PrefillRules) -> None:
    assert choose(Prompt(127, 0, 1000), BUSY, FREE, rules=rules) == Choice("short")
    assert choose(Prompt(2000, 1873, 1000), BUSY, FREE, rules=rules) == Choice("warm")
    for long_enough in (Prompt(128, 0, 1000), Prompt(2000, 1872, 1000)):
        assert choose(long_enough, BUSY, FREE, rules=rules).reason == "chosen"


@pytest.mark.parametrize("rules", [RULES, THRESHOLD])
def test_all_stays_while_nobody_is_there_or_nothing_may_be_lent(rules: PrefillRules) -> None:
    assert choose(LONG, BUSY, rules=rules) == Choice("no_prefill_worker")
    assert choose(LONG, BUSY, FREE, has_room=False, rules=rules) == Choice("no_room")


def test_an_idle_worker_prefills_itself_unless_another_is_faster() -> None:
    stays = choose(LONG, IDLE, FREE)
    assert (stays.reason, stays.is_remote) == ("slower_there", False)
    assert stays.terms is not None
    assert stays.terms.there_s > stays.terms.here_s
    fast = dataclasses.replace(FREE, prefill_rate=2000.0)
    assert choose(LONG, IDLE, fast).worker == "free"


def test_one_that_runs_sequences_or_has_a_queue_sends_away() -> None:
    assert choose(LONG, dataclasses.replace(IDLE, num_running=1), FREE).reason == "chosen"
    assert choose(LONG, dataclasses.replace(IDLE, waiting_tokens=100), FREE).reason == "chosen"
    heedless = dataclasses.replace(RULES, slowdown=0.0)
    assert choose(LONG, BUSY, FREE, rules=heedless).reason == "slower_there"


def test_a_long_way_keeps_prompts_here_and_the_nearer_worker_is_asked() -> None:
    afar = dataclasses.replace(FREE, trip_s=0.5)
    short = dataclasses.replace(LONG, num_tokens=200)
    assert choose(short, dataclasses.replace(IDLE, num_running=1), afar).reason == "slower_there"
    assert choose(short, dataclasses.replace(IDLE, num_running=1), afar, FREE).reason == "chosen"
    assert choose(LONG, BUSY, afar, dataclasses.replace(FREE, worker="near")).worker == "near"


def test_those_that_await_their_kv_would_feel_a_prefill_like_those_that_run() -> None:
    desk = Desk()
    desk.engine.add(spec_of("runs", [1, 2, 3]))
    desk.engine.step_once()
    desk.engine.add(spec_of("awaits", [4, 5, 6, 7, 8]), await_kv=True)
    desk.engine.add(spec_of("waits", [9, 10, 11]))
    here = here_now(desk.engine.load())
    assert (here.num_running, here.waiting_tokens) == (2, 3)
    assert here_now(desk.engine.load(), num_own=1).num_running == 1


def test_when_all_are_busy_the_prompt_stays() -> None:
    busy = dataclasses.replace(FREE, waiting_tokens=100_000)
    assert choose(LONG, BUSY, busy, dataclasses.replace(busy, worker="too")).reason == "slower_there"
    assert choose(LONG, BUSY, busy, FREE).worker == "free"


def test_by_the_threshold_it_goes_whatever_the_queues() -> None:
    busy = dataclasses.replace(FREE, waiting_tokens=100_000)
    assert choose(LONG, IDLE, busy, rules=THRESHOLD).worker == "free"


def test_the_prefill_worker_that_would_be_done_first_is_asked() -> None:
    loaded = dataclasses.replace(FREE, worker="loaded", waiting_tokens=1000)
    warm = dataclasses.replace(loaded, worker="warm", prefix_tokens=1500)
    fast = dataclasses.replace(loaded, worker="fast", prefill_rate=4000.0)
    assert choose(LONG, BUSY, loaded, warm).worker == "warm"
    assert choose(LONG, BUSY, loaded, warm, FREE).worker == "warm", "1500 of 2500 tokens are saved"
    assert choose(LONG, BUSY, loaded, fast, FREE).worker == "fast"
    assert choose(LONG, BUSY, loaded, FREE).worker == "free"


def test_a_prefix_that_our_own_cache_has_too_makes_nobody_better() -> None:
    prompt = Prompt(num_tokens=2000, cached_tokens=1600, token_bytes=1.0)
    warm = dataclasses.replace(FREE, worker="warm", prefix_tokens=1000, waiting_tokens=10)
    assert choose(prompt, BUSY, warm, FREE).worker == "free"


def test_of_those_alike_one_of_the_own_zone_is_asked_and_else_any() -> None:
    afar = dataclasses.replace(FREE, worker="afar", zone="west")
    twin = dataclasses.replace(FREE, worker="twin")
    assert {choose(LONG, BUSY, afar, FREE).worker for _ in range(50)} == {"free"}
    assert {choose(LONG, BUSY, twin, FREE).worker for _ in range(50)} == {"free", "twin"}
    idle_afar = dataclasses.replace(FREE, waiting_tokens=5000)
    assert choose(LONG, BUSY, afar, idle_afar).worker == "afar"
