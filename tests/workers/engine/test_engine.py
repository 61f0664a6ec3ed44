"""The engine's verbs and steps, one behaviour each, stepped by hand."""

from collections.abc import Callable

import msgspec
import pytest

from proto.blockhash import block_hashes
from proto.errors import (
    GrantRefused,
    InternalFault,
    InvalidRequest,
    InvalidSetting,
    KvmeshError,
    Overloaded,
    PromptTooLong,
)
from proto.tokens import pack_tokens
from tests.workers.engine.engine_desk import SALT, Desk, prefill_of, small_settings, spec_of
from tests.workers.engine.witness_runner import WitnessRunner, expect_tokens
from workers.engine.engine import Engine
from workers.engine.sequence import SequenceKind, SequenceSpec

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
LONG = [20 + position % 17 for position in range(36)]


def serve(desk: Desk, spec: SequenceSpec) -> tuple[list[int], str]:
    desk.engine.add(spec)
    desk.step_to_rest()
    return desk.record.tokens[spec.sequence], desk.record.finishes[spec.sequence]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 35, 39])
def test_a_prompt_of_any_length_gives_its_tokens_cold_and_warm(length: int) -> None:
    desk = Desk()
    prompt = [1 + position % 23 for position in range(length)]
    expected = expect_tokens(spec_of("a", prompt), 40)
    assert serve(desk, spec_of("a", prompt)) == expected
    assert desk.engine.match(prompt, SALT) == (length - 1) // 4 * 4
    assert serve(desk, spec_of("b", prompt)) == expected
    desk.assert_at_rest()


def test_the_next_turn_finds_the_generated_tokens_in_the_cache() -> None:
    desk = Desk()
    answer, _ = serve(desk, spec_of("a", PROMPT, max_tokens=8))
    # The last generated token was never an input, so its KV does not exist.
    assert desk.engine.match([*PROMPT, *answer, 1, 2], SALT) == (len(PROMPT) + 7) // 4 * 4


@pytest.mark.parametrize("num_known", [1, 2])
def test_hashes_that_come_with_a_prompt_name_what_would_be_hashed_here(num_known: int) -> None:
    hashes = block_hashes(pack_tokens(PROMPT), 4, SALT)[:num_known]
    told, hashing = Desk(), Desk()
    answer = serve(told, msgspec.structs.replace(spec_of("a", PROMPT), hashes=hashes))
    assert answer == serve(hashing, spec_of("a", PROMPT))
    for desk in (told, hashing):
        desk.replay_events()
    assert told.index == hashing.index
    assert told.engine.match(PROMPT, SALT, hashes) == told.engine.match(PROMPT, SALT)
    told.assert_at_rest()


def test_another_salt_shares_nothing() -> None:
    desk = Desk()
    serve(desk, spec_of("a", PROMPT))
    assert desk.engine.match(PROMPT, b"other") == 0
    assert desk.engine.add(spec_of("b", PROMPT, salt=b"other")) == 0


def test_a_stop_token_is_the_last_token_even_when_it_is_the_first() -> None:
    first = expect_tokens(spec_of("a", PROMPT), 40)[0][0]
    stop = frozenset({first})
    assert serve(Desk(), spec_of("a", PROMPT, stop_tokens=stop, max_tokens=1)) == ([first], "stop")


def test_max_tokens_counts_what_earlier_attempts_generated() -> None:
    whole, _ = serve(Desk(), spec_of("a", PROMPT, max_tokens=6))
    attempt = spec_of("b", [*PROMPT, *whole[:4]], num_prompt=len(PROMPT), max_tokens=6)
    assert serve(Desk(), attempt) == (whole[4:], "length")


def test_a_sequence_ends_where_the_context_does() -> None:
    tokens, finish = serve(Desk(), spec_of("a", LONG, max_tokens=1000))
    assert (len(LONG) + len(tokens), finish) == (40, "length")


def test_a_pool_smaller_than_the_context_bounds_the_context() -> None:
    desk = Desk(small_settings(num_blocks=3))
    assert desk.engine.context_tokens == 12
    tokens, finish = serve(desk, spec_of("a", PROMPT, max_tokens=1000))
    assert (len(PROMPT) + len(tokens), finish) == (12, "length")
    desk.assert_at_rest()


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (spec_of("x", [1] * 40), PromptTooLong),
        (prefill_of("x", [1] * 41), PromptTooLong),
        (spec_of("x", []), InvalidRequest),
        (spec_of("x", [1, 50]), InvalidRequest),
        (spec_of("x", [1, -1]), InvalidRequest),
        (spec_of("x", [1, 2], num_prompt=3), InvalidRequest),
        (spec_of("x", [1, 2, 3], num_prompt=1, max_tokens=2), InvalidRequest),
        (spec_of("x", [1], max_tokens=0), InvalidRequest),
        (spec_of("taken", [1]), InvalidRequest),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(spec: SequenceSpec, error: type[KvmeshError]) -> None:
    desk = Desk()
    desk.engine.add(spec_of("taken", PROMPT))
    with pytest.raises(error):
        desk.engine.add(spec)
    desk.step_to_rest()
    desk.assert_at_rest()


def test_a_full_waiting_list_refuses_and_takes_again_once_somebody_left() -> None:
    desk = Desk(small_settings(max_waiting=2))
    desk.engine.add(spec_of("a", PROMPT))
    desk.engine.add(spec_of("b", PROMPT), await_kv=True)
    with pytest.raises(Overloaded):
        desk.engine.add(spec_of("c", PROMPT))
    assert desk.engine.cancel("b")
    desk.engine.add(spec_of("c", PROMPT))
    desk.step_to_rest()
    desk.assert_at_rest()


def test_settings_that_fit_no_pool_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="step_tokens"):
        small_settings(step_tokens=7, max_sequences=4)
    desk = Desk()
    with pytest.raises(InvalidSetting, match="num_blocks"):
        Engine(WitnessRunner(13, 4), desk.settings, desk.record)


def test_chunks_end_on_block_borders_and_decodes_go_first() -> None:
    desk = Desk(small_settings(step_tokens=11))
    desk.engine.add(spec_of("short", [1], max_tokens=9))
    desk.engine.step_once()
    desk.engine.add(spec_of("long", LONG[:30]))
    desk.step_to_rest()
    steps = desk.runner.batches[1:6]
    assert [step[0][1] for step in steps] == [1] * 5
    assert [step[1] for step in steps] == [(0, 8), (8, 8), (16, 8), (24, 6), (30, 1)]


@pytest.mark.parametrize("make", [spec_of, prefill_of])
def test_a_step_in_which_nothing_decodes_may_take_more_tokens(
    make: Callable[[str, list[int]], SequenceSpec],
) -> None:
    desk = Desk(small_settings(step_tokens=11, prefill_step_tokens=22))
    desk.engine.add(spec_of("short", [1], max_tokens=3))
    desk.engine.step_once()
    desk.engine.add(make("long", LONG[:36]))
    for _ in range(4):
        desk.engine.step_once()
    assert desk.runner.batches[1:4] == [[(1, 1), (0, 8)], [(2, 1), (8, 8)], [(16, 20)]]


def test_prefills_for_others_share_the_tokens_of_a_step_and_are_counted_apart() -> None:
    desk = Desk(small_settings(step_tokens=24))
    for first in (1, 2, 3):
        desk.engine.add(prefill_of(f"p{first}", [first] * 9))
    desk.engine.add(spec_of("own", [4] * 7))
    load = desk.engine.load()
    assert (load.waiting_tokens, load.job_tokens) == (27 + 7, 27)
    desk.engine.step_once()
    assert desk.runner.batches == [[(0, 9), (0, 9), (0, 4)]]
    load = desk.engine.load()
    assert (load.waiting_tokens, load.job_tokens) == (5 + 7, 5)
    desk.step_to_rest()
    assert desk.record.held == ["p1", "p2", "p3"]
    assert len(desk.runner.batches[1]) == 2
    for name in desk.record.held:
        desk.engine.release(name)
    desk.assert_at_rest()


def test_a_lower_priority_number_goes_first_then_the_earlier_arrival() -> None:
    desk = Desk(small_settings(max_sequences=1))
    for name, priority in [("late", 1), ("first", 0), ("second", 0), ("urgent", -1)]:
        desk.engine.add(spec_of(name, [len(name)] * 3, priority=priority))
    desk.step_to_rest()
    assert list(desk.record.finishes) == ["urgent", "first", "second", "late"]


def test_a_pool_too_small_for_all_preempts_and_gives_the_same_tokens() -> None:
    desk = Desk(small_settings(num_blocks=10))
    specs = [spec_of(f"s{first}", [first] * 9, max_tokens=28) for first in range(1, 5)]
    for spec in specs:
        desk.engine.add(spec)
    desk.step_to_rest()
    assert desk.engine.load().num_preemptions > 0
    for spec in specs:
        assert desk.record.tokens[spec.sequence] == expect_tokens(spec, 40)[0]
    desk.assert_at_rest()


def test_an_admission_leaves_those_that_run_a_block_each_to_grow_into() -> None:
    desk = Desk(small_settings(num_blocks=10))
    desk.engine.add(spec_of("first", [1] * 23, max_tokens=12))
    desk.engine.step_once()
    desk.engine.add(spec_of("second", [2] * 14, max_tokens=1))
    desk.engine.step_once()
    assert desk.engine.load().num_waiting == 1
    desk.step_to_rest()
    assert desk.engine.load().num_preemptions == 0
    desk.assert_at_rest()


def test_waiting_sequences_whose_claims_fill_the_pool_do_not_wait_for_each_other() -> None:
    desk = Desk(small_settings(num_blocks=6, context_tokens=24))
    left, right = [1] * 13, [2] * 13
    serve(desk, spec_of("l", left, max_tokens=1))
    serve(desk, spec_of("r", right, max_tokens=1))
    assert [desk.engine.add(spec_of(name, tokens)) for name, tokens in [("L", left), ("R", right)]] == [8, 12]
    assert desk.engine.load().free_blocks == 1
    desk.engine.add(spec_of("other", [3] * 16, priority=-1))
    desk.step_to_rest()
    assert desk.record.finishes.keys() == {"l", "r", "L", "R", "other"}
    assert desk.record.tokens["R"] == expect_tokens(spec_of("R", right), 24)[0]
    desk.assert_at_rest()


def test_a_prefill_is_held_with_its_blocks_until_it_is_released() -> None:
    desk = Desk()
    desk.engine.add(prefill_of("p", LONG[:18]))
    desk.step_to_rest()
    assert desk.record.held == ["p"]
    assert desk.record.tokens == {"p": []}
    assert desk.runner.holds(desk.engine.block_table("p"), LONG[:18])
    assert desk.engine.load().active_blocks == 5
    assert desk.engine.release("p")
    assert desk.engine.block_table("p") == []
    assert desk.engine.match(LONG, SALT) == 16
    desk.assert_at_rest()


def test_layers_are_told_for_prefills_alone_range_by_range() -> None:
    desk = Desk()
    desk.engine.add(spec_of("g", PROMPT, max_tokens=3))
    desk.engine.step_once()
    desk.engine.add(prefill_of("p", LONG[:14]))
    desk.step_to_rest()
    table = desk.engine.block_table("p")
    spans = [(0, 8, table[:2]), (8, 14, table[2:])]
    layers = [(0, 1), (1, 2)]
    assert desk.record.layers == [("p", *span, 0, part) for span in spans for part in layers]


def test_a_prefill_that_is_cached_whole_is_held_without_a_step_of_the_runner() -> None:
    desk = Desk()
    serve(desk, spec_of("a", LONG[:16], max_tokens=1))
    num_batches = len(desk.runner.batches)
    assert desk.engine.add(prefill_of("p", LONG[:16])) == 16
    desk.step_to_rest()
    assert desk.record.held == ["p"]
    assert len(desk.runner.batches) == num_batches
    assert desk.runner.holds(desk.engine.block_table("p"), LONG[:16])
    desk.engine.release("p")
    desk.assert_at_rest()


def test_a_whole_cached_prefill_that_is_cancelled_while_others_compute_is_not_told_of() -> None:
    desk = Desk()
    serve(desk, spec_of("a", LONG[:16], max_tokens=1))
    desk.engine.add(prefill_of("p", LONG[:16]))
    desk.engine.add(spec_of("b", [3] * 5))
    desk.runner.during = lambda: desk.engine.cancel("p")
    desk.step_to_rest()
    assert desk.record.held == []
    assert "b" in desk.record.finishes
    desk.assert_at_rest()


@pytest.mark.parametrize("num_steps", range(9))
@pytest.mark.parametrize("kind", list(SequenceKind))
def test_a_cancel_at_any_step_brings_every_block_back(kind: SequenceKind, num_steps: int) -> None:
    desk = Desk()
    desk.engine.add(spec_of("a", LONG[:30], kind=kind))
    desk.engine.add(spec_of("b", PROMPT))
    for _ in range(num_steps):
        desk.engine.step_once()
    is_there = "a" not in desk.record.finishes
    assert desk.engine.cancel("a") is is_there
    assert not desk.engine.cancel("a")
    desk.step_to_rest()
    assert desk.record.tokens["b"] == expect_tokens(spec_of("b", PROMPT), 40)[0]
    desk.assert_at_rest()


def test_a_cancel_in_mid_step_gives_no_token_and_frees_at_the_end_of_the_step() -> None:
    desk = Desk()
    desk.engine.add(spec_of("a", PROMPT))
    seen: list[int] = []

    def cancel() -> None:
        assert desk.engine.cancel("a")
        seen.append(desk.engine.load().active_blocks)

    desk.runner.during = cancel
    desk.engine.step_once()
    assert seen == [3]
    assert desk.record.tokens == {}
    assert not desk.engine.step_once()
    desk.assert_at_rest()


@pytest.mark.parametrize("decodes", [False, True])
def test_a_step_that_all_of_it_is_to_leave_ends_with_its_tokens_unless_it_reads_prompts(
    decodes: bool,
) -> None:
    desk = Desk()
    for name in "ab":
        desk.engine.add(spec_of(name, PROMPT))
    while decodes and len(desk.record.tokens) < 2:
        desk.engine.step_once()
    num_computed, num_batches = desk.engine.load().computed_tokens, len(desk.runner.batches)
    desk.runner.during = lambda: [desk.engine.freeze(name) for name in "ab"]
    desk.engine.step_once()
    assert len(desk.runner.batches) == num_batches + decodes
    assert desk.engine.load().computed_tokens == num_computed + 2 * decodes
    desk.engine.step_once()
    assert desk.record.frozen == {"a", "b"}
    desk.engine.cancel("a")
    desk.engine.thaw("b")
    desk.step_to_rest()
    undisturbed, _ = serve(Desk(), spec_of("b", PROMPT))
    assert desk.record.tokens["b"] == undisturbed
    desk.assert_at_rest()


def test_what_is_computed_or_waits_freezes_together_and_what_awaits_its_kv_goes_on_awaiting() -> None:
    desk = Desk(small_settings(max_sequences=1))
    desk.engine.add(spec_of("runs", PROMPT))
    desk.engine.step_once()
    desk.engine.add(spec_of("waits", PROMPT))
    desk.engine.add(spec_of("awaits", PROMPT), await_kv=True)
    names = ["runs", "waits", "awaits", "gone"]
    assert desk.engine.freeze_computed(names) == ["runs", "waits"]
    assert not desk.engine.step_once()
    assert desk.record.frozen == {"runs", "waits"}
    assert desk.engine.freeze_computed(names) == []
    assert desk.engine.recall("awaits")
    desk.engine.thaw("runs")
    desk.engine.thaw("waits")
    desk.step_to_rest()
    undisturbed, _ = serve(Desk(), spec_of("runs", PROMPT))
    assert {name: desk.record.tokens[name] for name in names[:3]} == dict.fromkeys(names[:3], undisturbed)
    desk.assert_at_rest()


def test_a_step_that_anybody_wants_goes_on() -> None:
    desk = Desk()
    for name in "abc":
        desk.engine.add(spec_of(name, [ord(name) % 7] * 3, max_tokens=30))

    def count() -> list[int]:
        return [len(desk.record.tokens.get(name, [])) for name in "abc"]

    while 0 in count():
        desk.engine.step_once()
    first = count()
    desk.runner.during = lambda: (desk.engine.freeze("a"), desk.engine.cancel("b"))
    desk.engine.step_once()
    assert count() == [first[0] + 1, first[1], first[2] + 1]
    desk.runner.during = lambda: (desk.engine.freeze("c"), desk.engine.thaw("c"))
    desk.engine.step_once()
    assert count() == [first[0] + 1, first[1], first[2] + 2]


def test_a_cancelled_prompt_ends_in_the_midst_of_its_step() -> None:
    desk = Desk()
    desk.engine.add(spec_of("long", LONG))
    num_batches = len(desk.runner.batches)
    desk.runner.during = lambda: desk.engine.cancel("long")
    desk.engine.step_once()
    assert len(desk.runner.batches) == num_batches
    desk.assert_at_rest()


def test_landed_kv_is_decoded_from_and_cached_as_if_it_had_been_computed() -> None:
    desk = Desk()
    spec = spec_of("a", LONG[:18])
    assert desk.engine.add(spec, await_kv=True) == 0
    assert not desk.engine.step_once()
    blocks = desk.engine.set_aside("a", 17)
    desk.runner.fill(blocks, LONG[:17], 0)
    assert desk.engine.load().set_aside_blocks == 5
    assert desk.engine.land("a", blocks, 17)
    assert desk.engine.match(LONG, SALT) == 16
    desk.step_to_rest()
    assert desk.runner.batches[0] == [(17, 1)]
    assert desk.record.tokens["a"] == expect_tokens(spec, 40)[0]
    assert desk.engine.load().hit_tokens == 0
    desk.assert_at_rest()


def test_of_equals_the_one_whose_kv_has_landed_goes_first() -> None:
    desk = Desk(small_settings(max_sequences=1))
    desk.engine.add(spec_of("early", PROMPT))
    desk.engine.add(spec_of("landed", LONG[:9]), await_kv=True)
    blocks = desk.engine.set_aside("landed", 8)
    desk.runner.fill(blocks, LONG[:8], 0)
    desk.engine.land("landed", blocks, 8)
    desk.step_to_rest()
    assert list(desk.record.finishes) == ["landed", "early"]


def test_kv_that_lands_within_a_block_is_not_mixed_with_what_is_cached_beyond_it() -> None:
    desk = Desk()
    spec = spec_of("a", LONG[:18])
    desk.engine.add(spec, await_kv=True)
    blocks = desk.engine.set_aside("a", 6)
    serve(desk, spec_of("b", LONG[:18]))
    desk.runner.fill(blocks, LONG[:6], 0)
    assert desk.engine.land("a", blocks, 6)
    desk.step_to_rest()
    assert desk.record.tokens["a"] == expect_tokens(spec, 40)[0]
    desk.assert_at_rest()


def test_a_late_landing_is_refused_and_its_blocks_stay_the_callers() -> None:
    desk = Desk()
    desk.engine.add(spec_of("a", LONG[:18]), await_kv=True)
    blocks = desk.engine.set_aside("a", 17)
    assert desk.engine.recall("a")
    assert not desk.engine.land("a", blocks, 17)
    assert not desk.engine.land("unknown", blocks, 17)
    desk.step_to_rest()
    assert desk.engine.load().set_aside_blocks == 5
    desk.engine.give_back(blocks)
    desk.assert_at_rest()


def test_blocks_that_do_not_fit_the_range_are_no_landing() -> None:
    desk = Desk()
    desk.engine.add(spec_of("a", LONG[:18]), await_kv=True)
    blocks = desk.engine.set_aside("a", 17)
    with pytest.raises(InternalFault):
        desk.engine.land("a", blocks[1:], 17)
    with pytest.raises(InternalFault):
        desk.engine.land("a", blocks, 18)
    assert desk.engine.land("a", blocks, 17)


@pytest.mark.parametrize(("name", "end"), [("a", 18), ("a", 0), ("computed", 4), ("unknown", 4)])
def test_no_blocks_are_set_aside_for_what_nobody_awaits(name: str, end: int) -> None:
    desk = Desk()
    desk.engine.add(spec_of("a", LONG[:18]), await_kv=True)
    desk.engine.add(spec_of("computed", PROMPT))
    with pytest.raises(GrantRefused):
        desk.engine.set_aside(name, end)


def test_blocks_are_set_aside_only_as_far_as_there_are_any_to_spare() -> None:
    desk = Desk()
    for name in "ab":
        desk.engine.add(spec_of(name, LONG), await_kv=True)
    blocks = desk.engine.set_aside("a", 35)
    with pytest.raises(GrantRefused, match="spare"):
        desk.engine.set_aside("b", 35)
    desk.engine.give_back(blocks)
    assert len(desk.engine.set_aside("b", 35)) == 9


def test_pinned_blocks_are_not_evicted_and_others_wait_for_them() -> None:
    desk = Desk()
    serve(desk, spec_of("a", LONG, max_tokens=1))
    blocks = desk.engine.pin(block_hashes(pack_tokens(LONG), 4, SALT))
    desk.engine.add(spec_of("b", [3] * 30))
    assert not desk.engine.step_once()
    assert len(blocks) == 9
    assert desk.runner.holds(blocks, LONG)
    desk.engine.unpin(blocks)
    desk.step_to_rest()
    assert "b" in desk.record.finishes
    desk.assert_at_rest()


def test_a_step_that_raises_ends_its_sequences_and_nobody_elses() -> None:
    desk = Desk(small_settings(max_sequences=1))
    desk.engine.add(spec_of("a", PROMPT))
    desk.engine.add(spec_of("b", PROMPT))
    desk.runner.fail_next = True
    desk.step_to_rest()
    assert desk.record.faults.keys() == {"a"}
    assert desk.record.tokens["b"] == expect_tokens(spec_of("b", PROMPT), 40)[0]
    assert desk.engine.is_healthy
    desk.assert_at_rest()


def test_a_bad_row_ends_alone_and_its_blocks_leave_the_cache() -> None:
    desk = Desk()
    serve(desk, spec_of("before", PROMPT, max_tokens=1))
    assert desk.engine.match(PROMPT, SALT) == 8
    desk.engine.add(spec_of("a", PROMPT))
    desk.engine.add(spec_of("b", [3] * 5))
    desk.runner.bad_next = True
    desk.step_to_rest()
    assert desk.record.faults.keys() == {"a"}
    assert desk.record.finishes.keys() == {"before", "b"}
    assert desk.engine.match(PROMPT, SALT) == 0
    desk.assert_at_rest()


def test_failed_steps_in_a_row_end_the_engine_and_a_good_one_between_them_forgives() -> None:
    desk = Desk(small_settings(max_failed_steps=2))
    for name in "abc":
        desk.engine.add(spec_of(name, PROMPT, max_tokens=1))
        desk.runner.fail_next = name != "b"
        desk.engine.step_once()
    desk.engine.add(spec_of("d", PROMPT))
    desk.runner.fail_next = True
    with pytest.raises(InternalFault, match="2 steps failed in a row"):
        desk.engine.step_once()
    assert desk.record.faults.keys() == {"a", "c", "d"}


def test_load_tells_what_is_promised_and_what_was_found() -> None:
    desk = Desk()
    serve(desk, spec_of("a", LONG[:18]))
    desk.engine.add(spec_of("b", LONG[:18]))
    desk.engine.add(spec_of("c", [3] * 10), await_kv=True)
    load = desk.engine.load()
    assert (load.num_waiting, load.num_awaiting, load.waiting_tokens) == (1, 1, 2)
    assert (load.prompt_tokens, load.hit_tokens) == (46, 16)
    assert load.total_blocks == load.free_blocks + load.active_blocks
    assert load.prefill_rate > 0
    assert load.decode_step_s > 0
