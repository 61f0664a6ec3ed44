"""What a prompt's tokens are worth is told once, whole, with the first token; and when ends may come."""

import pytest

from tests.workers.engine.engine_desk import Desk, small_settings, spec_of
from tests.workers.engine.witness_runner import expect_records, expect_tokens, sample

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]


@pytest.mark.parametrize("length", [1, 2, 4, 5, len(PROMPT)])
def test_scores_of_a_prompt_come_with_its_first_token_though_its_prefix_is_cached(length: int) -> None:
    desk = Desk()
    desk.engine.add(spec_of("warms", PROMPT[:length]))
    desk.step_to_rest()
    spec = spec_of("scored", PROMPT[:length], prompt_logprobs=2)
    assert desk.engine.add(spec) == 0
    desk.step_to_rest()
    assert desk.record.prompt_logprobs["scored"] == expect_records(PROMPT[1:length], 1, 2)
    assert desk.record.tokens["scored"] == expect_tokens(spec, 40)[0]
    desk.assert_at_rest()


def test_scores_come_once_after_a_prompt_was_preempted_in_its_middle() -> None:
    desk = Desk(small_settings(num_blocks=11, step_tokens=8))
    first = spec_of("first", [1] * 9, max_tokens=28, priority=-1)
    desk.engine.add(first)
    while len(desk.record.tokens.get("first", [])) < 3:
        desk.engine.step_once()
    scored = spec_of("scored", PROMPT, prompt_logprobs=1)
    desk.engine.add(scored)
    while not desk.engine.load().num_preemptions:
        desk.engine.step_once()
    assert desk.record.tokens.keys() == {"first"}, "not in the middle of its prompt"
    desk.step_to_rest()
    assert desk.record.prompt_logprobs["scored"] == expect_records(PROMPT[1:], 1, 1)
    assert desk.record.tokens["scored"] == expect_tokens(scored, 40)[0]
    desk.assert_at_rest()


def test_few_tokens_of_a_step_are_scored_however_many_it_may_take() -> None:
    """Logits of the whole vocabulary for each of them are in memory at once."""
    desk = Desk(small_settings(num_blocks=200, context_tokens=400, step_tokens=400))
    desk.engine.add(spec_of("left", [1] * 200, prompt_logprobs=0))
    desk.engine.add(spec_of("plain", [3] * 150))
    desk.engine.add(spec_of("right", [2] * 200, prompt_logprobs=0))
    desk.engine.step_once()
    assert desk.runner.batches[0] == [(0, 128), (0, 150)]
    desk.step_to_rest()
    for name, token in (("left", 1), ("right", 2)):
        assert desk.record.prompt_logprobs[name] == expect_records([token] * 199, 1, 0)


def test_who_waits_to_be_scored_holds_back_nobody_and_keeps_its_turn() -> None:
    desk = Desk(small_settings(num_blocks=200, context_tokens=400, step_tokens=400, max_sequences=8))
    for name, token in (("left", 1), ("middle", 2), ("right", 3)):
        desk.engine.add(spec_of(name, [token] * 200, prompt_logprobs=0))
    desk.engine.add(spec_of("plain", [4] * 150))
    desk.engine.step_once()
    assert desk.runner.batches[0] == [(0, 128), (0, 150)]
    desk.step_to_rest()
    assert list(desk.record.tokens) == ["plain", "left", "middle", "right"], "as they got their first tokens"
    desk.assert_at_rest()


@pytest.mark.parametrize("min_tokens", [0, 1, 3])
def test_no_end_is_among_the_first_tokens_also_when_an_earlier_attempt_generated_some(
    min_tokens: int,
) -> None:
    """Every token but one ends it: that one comes until any may."""
    ends = frozenset(range(50)) - {33}
    spec = spec_of("all", PROMPT, max_tokens=9, stop_tokens=ends, min_tokens=min_tokens)
    later = spec_of("later", [*PROMPT, 33], num_prompt=len(PROMPT), stop_tokens=ends, min_tokens=min_tokens)
    desk = Desk()
    desk.engine.add(spec)
    desk.engine.add(later)
    desk.step_to_rest()
    assert sample(0, ends) == 33
    assert desk.record.tokens["all"][:min_tokens] == [33] * min_tokens
    assert len(desk.record.tokens["all"]) == min_tokens + 1
    assert desk.record.tokens["later"] == (desk.record.tokens["all"][1:] or desk.record.tokens["later"])
    assert desk.record.finishes == {"all": "stop", "later": "stop"}
