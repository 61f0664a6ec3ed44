"""Drafts let a step give more tokens a second, or there are none; the tokens are those of no drafts."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.planner.step_cost import StepCost
from tests.workers.engine.drafters import DRAFTERS, Liar, Oracle, drafting_of
from tests.workers.engine.engine_desk import Desk, prefill_of, small_settings, spec_of
from tests.workers.engine.witness_runner import VOCAB_SIZE, expect_records, expect_tokens
from workers.engine.guesses import PROBE_STEPS, Guesses
from workers.engine.rates import Rates
from workers.engine.runner import SampleParams
from workers.engine.speculation import choose_drafts

SHARES = st.floats(0.01, 0.99)
COSTS = st.builds(StepCost, base_s=st.floats(0.001, 1.0), sequence_s=st.floats(0.001, 1.0))


def worths_of(rates: list[float], num_drafts: int) -> list[list[float]]:
    return [[rate ** (place + 1) for place in range(num_drafts)] for rate in rates]


def speed(counts: tuple[int, ...], worths: list[list[float]], cost: StepCost) -> float:
    """Tokens a second of a step with so many drafts for each row."""
    given = len(worths) + sum(sum(each[:count]) for each, count in zip(worths, counts, strict=True))
    return given / cost.step_s(len(worths) + sum(counts))


@settings(max_examples=100, deadline=None)
@given(rates=st.lists(SHARES, min_size=1, max_size=3), num_drafts=st.integers(0, 4), cost=COSTS)
def test_as_many_drafts_are_tried_as_give_the_most_tokens_a_second(
    rates: list[float], num_drafts: int, cost: StepCost
) -> None:
    worths = worths_of(rates, num_drafts)
    chosen = tuple(choose_drafts(worths, len(rates), cost))
    every = itertools.product(range(num_drafts + 1), repeat=len(rates))
    best = max(speed(counts, worths, cost) for counts in every)
    assert speed(chosen, worths, cost) == pytest.approx(best)


@pytest.mark.parametrize("num_tokens", [1, 4])
def test_a_step_that_stood_still_does_not_decide_what_a_token_costs(num_tokens: int) -> None:
    rates = Rates()
    for step in range(200):
        computed = 1 + step % 4
        rates.note_decode(computed, 1.0, 0.09 + 0.01 * computed)
    rates.note_decode(num_tokens, 1.0, 60.0)
    cost = rates.decode_cost
    assert cost is not None
    assert cost.step_s(1) == pytest.approx(0.1, rel=0.05)
    assert cost.sequence_s == pytest.approx(0.01, rel=0.5)


def drafts_of_a_step(guesses: Guesses, num_rows: int, cost: StepCost) -> int:
    """Of one row among others that have none."""
    (mine, *_) = choose_drafts([guesses.worths(8), *[[]] * (num_rows - 1)], num_rows, cost)
    return mine


@pytest.mark.parametrize("num_rows", [1, 8, 64])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_drafts_that_are_never_right_cost_little(num_rows: int, share: float) -> None:
    """Each costs at most as much as one more sequence, of which a step of one has `share` beside its base."""
    cost = StepCost(base_s=1.0 - share, sequence_s=share)
    guesses = Guesses(Liar())
    num_steps = 2000
    drafted = []
    for _ in range(num_steps):
        drafted.append(drafts_of_a_step(guesses, num_rows, cost))
        guesses.note(drafted[-1], 0)
    beginning = next(step for step in range(num_steps) if not any(drafted[step : step + PROBE_STEPS]))
    assert sum(drafted[:beginning]) <= 60
    assert sum(drafted[beginning:]) <= num_steps / PROBE_STEPS
    assert sum(drafted) * cost.sequence_s / (num_steps * cost.step_s(num_rows)) < 0.05


def test_a_drafter_that_comes_to_its_own_is_believed_again() -> None:
    cost = StepCost(base_s=0.9, sequence_s=0.1)
    guesses = Guesses(Oracle())
    while drafts_of_a_step(guesses, 1, cost):
        guesses.note(1, 0)
    for _ in range(PROBE_STEPS):
        guesses.note(0, 0)
    assert drafts_of_a_step(guesses, 1, cost) == 1
    for _ in range(10):
        num_drafts = drafts_of_a_step(guesses, 1, cost)
        guesses.note(num_drafts, num_drafts)
    assert drafts_of_a_step(guesses, 1, cost) == 8


SPECS = {
    "plain": spec_of("plain", [1, 2, 3], max_tokens=30),
    "stops": spec_of("stops", [4, 5, 6, 7], max_tokens=30, stop_tokens=frozenset(range(0, VOCAB_SIZE, 7))),
    "not too early": spec_of(
        "not too early", [8], max_tokens=30, stop_tokens=frozenset(range(25)), min_tokens=11
    ),
    "told": spec_of("told", [9, 10], max_tokens=20, sample=SampleParams(repetition=1.5, logprobs=2)),
    "scored": spec_of("scored", [11, 12, 13, 14, 15], max_tokens=9, prompt_logprobs=1),
    "one token": spec_of("one token", [16, 17], max_tokens=1),
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("most_drafts", [1, 4, 11])
@pytest.mark.parametrize("num_blocks", [60, 11])
def test_tokens_records_and_ends_are_those_of_no_drafts(name: str, most_drafts: int, num_blocks: int) -> None:
    """With room for all, and with so little that sequences are preempted."""
    desk = Desk(small_settings(num_blocks=num_blocks), drafting_of(DRAFTERS[name], most_drafts))
    for spec in SPECS.values():
        desk.engine.add(spec)
    desk.engine.add(prefill_of("prefill", [20, 21, 22, 23, 24]))
    desk.step_to_rest()
    record = desk.record
    for each, spec in SPECS.items():
        assert (record.tokens[each], record.finishes[each]) == expect_tokens(spec, 40), each
        expected = expect_records(record.tokens[each], len(spec.tokens), spec.sample.logprobs)
        assert record.logprobs[each] == expected
    assert desk.engine.release("prefill")
    desk.assert_at_rest()
    load = desk.engine.load()
    assert load.drafted_tokens > 0
    assert (load.accepted_tokens == 0) == (name == "liar")
    assert load.accepted_tokens <= load.drafted_tokens


def test_right_drafts_spare_steps_and_none_is_tried_past_the_end() -> None:
    desk = Desk(small_settings(), drafting_of(Oracle, 4))
    desk.engine.add(spec_of("a", [1, 2, 3], max_tokens=12))
    desk.step_to_rest()
    # The prompt gives a token, and one step is measured before the first draft; then five a step.
    assert desk.runner.batches == [[(0, 3)], [(3, 1)], [(4, 5)], [(9, 5)]]
    load = desk.engine.load()
    assert (load.drafted_tokens, load.accepted_tokens) == (8, 8)


def test_drafts_take_only_what_a_step_has_left() -> None:
    """Of its tokens: who decodes and what is prefilled comes first, whole blocks of it."""
    desk = Desk(small_settings(num_blocks=30, step_tokens=12), drafting_of(Liar, 9))
    for name in "abc":
        desk.engine.add(spec_of(name, [ord(name) % 40] * 3, max_tokens=20))
    while desk.engine.load().drafted_tokens == 0:
        assert desk.engine.step_once()
    assert sum(num_tokens for _, num_tokens in desk.runner.batches[-1]) == 12
    desk.engine.add(spec_of("long", [45] * 24, max_tokens=2))
    desk.engine.step_once()
    assert desk.runner.batches[-1] == [(5, 2), (5, 1), (5, 1), (0, 8)]
    desk.step_to_rest()


def test_no_sequence_is_preempted_for_a_draft_and_no_block_kept_by_one() -> None:
    desk = Desk(small_settings(num_blocks=6), drafting_of(Liar, 9))
    for name in "ab":
        desk.engine.add(spec_of(name, [ord(name) % 40] * 4, max_tokens=8))
    while desk.engine.step_once():
        for sequence in desk.engine._books.sequences.values():
            assert len(sequence.blocks) <= -(-len(sequence.tokens) // 4)
    load = desk.engine.load()
    assert load.num_preemptions == 0
    assert load.drafted_tokens > 0
    desk.assert_at_rest()


def test_an_abandoned_step_leaves_nothing_of_its_drafts() -> None:
    desk = Desk(small_settings(), drafting_of(Oracle, 9))
    desk.engine.add(spec_of("a", [1, 2, 3], max_tokens=30))
    for _ in range(3):
        desk.engine.step_once()
    before = desk.engine.pin_sequence("a", 0)
    assert before is not None
    num_given = len(desk.record.tokens["a"])
    desk.engine.add(spec_of("reads", [4, 5, 6]))
    desk.runner.during = lambda: [desk.engine.freeze(name) for name in ("a", "reads")]
    desk.engine.step_once()
    desk.engine.step_once()
    assert desk.record.frozen == {"a", "reads"}
    after = desk.engine.pin_sequence("a", 0)
    assert after is not None
    assert (after.tokens, after.num_computed) == (before.tokens, before.num_computed)
    assert len(desk.record.tokens["a"]) == num_given
    assert len(desk.engine.block_table("a")) == -(-after.num_computed // 4)
    assert desk.runner.holds(after.blocks, after.tokens[: after.num_computed])
    for kv in (before, after):
        desk.engine.unpin(kv.blocks)
    assert all(desk.engine.thaw(name) for name in ("a", "reads"))
    desk.step_to_rest()
    assert desk.record.tokens["a"] == expect_tokens(spec_of("a", [1, 2, 3], max_tokens=30), 40)[0]
    desk.assert_at_rest()
