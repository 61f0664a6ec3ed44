"""Any mix of requests in one batch: each row has the token and log-probabilities of a plain one-row loop."""

import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proto.logprobs import unpack_logprobs
from tests.workers.engine.naive_sampler import Asked, naive_logprobs, naive_tokens
from workers.engine.draw import Draw
from workers.engine.runner import RowResult, SampleParams
from workers.engine.sampler import sample

VOCAB = 70
TOKENS = st.integers(0, VOCAB - 1)
# Fractions of a power of two: float32 adds and scales them without rounding, as the plain loop does.
EIGHTHS = st.integers(-16, 16).map(lambda number: number / 8)
SEEDS = st.integers(0, 2**32)


def logits_of(seed: int) -> list[float]:
    numbers = random.Random(seed)
    return [numbers.randint(-512, 512) / 64 for _ in range(VOCAB)]


def some_tokens(seed: int) -> frozenset[int]:
    numbers = random.Random(seed)
    return frozenset(numbers.sample(range(VOCAB), numbers.randint(1, VOCAB)))


PARAMS = st.builds(
    SampleParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, VOCAB, VOCAB + 7]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    seed=st.integers(0, 2**63 - 1),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    presence=EIGHTHS,
    frequency=EIGHTHS,
    repetition=st.sampled_from([0.5, 1.0, 1.0, 2.0, 4.0]),
    bias=st.dictionaries(TOKENS, st.integers(-100, 100).map(float), max_size=4),
    logprobs=st.none() | st.integers(0, 20),
)
PLAIN = st.builds(SampleParams, temperature=st.sampled_from([0.0, 0.9]), seed=st.integers(0, 9))
ASKED = st.builds(
    Asked,
    logits=SEEDS.map(logits_of),
    params=PLAIN | PARAMS,
    prompt=st.lists(TOKENS, min_size=1, max_size=12),
    generated=st.lists(st.integers(0, 9), max_size=12),
    banned=st.frozensets(TOKENS, max_size=4),
    allowed=st.none() | SEEDS.map(some_tokens),
)


def sample_all(batch: list[Asked]) -> list[RowResult]:
    draws = [asked.draw(key) for key, asked in enumerate(batch)]
    return sample(torch.tensor([asked.logits for asked in batch]), draws)


@settings(max_examples=120, deadline=None)
@given(batch=st.lists(ASKED, min_size=1, max_size=6))
def test_every_row_of_a_mixed_batch_is_drawn_as_alone_by_a_plain_loop(batch: list[Asked]) -> None:
    for asked, result in zip(batch, sample_all(batch), strict=True):
        (token,) = result.tokens
        assert token in naive_tokens(asked)
        assert not result.failed


@settings(max_examples=60, deadline=None)
@given(batch=st.lists(ASKED, min_size=1, max_size=6))
def test_log_probabilities_are_the_models_own_whatever_was_asked(batch: list[Asked]) -> None:
    for asked, result in zip(batch, sample_all(batch), strict=True):
        if asked.params.logprobs is None:
            assert result.logprobs == b""
            continue
        expected = naive_logprobs(asked.logits)
        (token,) = result.tokens
        told = unpack_logprobs(result.logprobs)
        assert told.logprob == pytest.approx(expected[token], abs=1e-4)
        assert told.rank == 1 + sum(logit > asked.logits[token] for logit in asked.logits)
        assert len({best for best, _ in told.best}) == asked.params.logprobs
        likeliest = sorted(expected, reverse=True)[: asked.params.logprobs]
        assert [logprob for _, logprob in told.best] == pytest.approx(likeliest, abs=1e-4)
        assert [expected[best] for best, _ in told.best] == pytest.approx(likeliest, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(asked=ASKED, others=st.lists(ASKED, max_size=4), place=st.integers(0, 4))
def test_a_row_is_the_same_alone_and_among_any_others(asked: Asked, others: list[Asked], place: int) -> None:
    (alone,) = sample_all([asked])
    among = sample_all([*others[:place], asked, *others[place:]])[min(place, len(others))]
    assert (among.tokens, among.logprobs[4:8]) == (alone.tokens, alone.logprobs[4:8])


FLAT = [0.0] * VOCAB


@example(banned=frozenset({3}), allowed=frozenset({3}))
@example(banned=frozenset({3}), allowed=frozenset({3, 4}))
@given(banned=st.frozensets(TOKENS, max_size=8), allowed=st.frozensets(TOKENS, min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_a_ban_holds_unless_it_leaves_nothing_of_what_is_allowed(
    banned: frozenset[int], allowed: frozenset[int]
) -> None:
    rows = [Asked(FLAT, SampleParams(9.0, seed=seed), [1], [], banned, allowed) for seed in range(20)]
    found = {result.tokens[0] for result in sample_all(rows)}
    assert found <= ((allowed - banned) or allowed)


def test_what_is_not_in_the_mask_at_all_is_not_allowed() -> None:
    draws = [Draw(seed, SampleParams(9.0, seed=seed), position=5, allowed=b"\xff") for seed in range(30)]
    found = {result.tokens[0] for result in sample(torch.zeros(30, VOCAB), draws)}
    assert max(found) < 8
    assert len(found) > 3


def test_a_row_of_which_nothing_is_allowed_fails_alone() -> None:
    nothing = Asked(FLAT, SampleParams(), [1], [], allowed=frozenset())
    anything = Asked([float(token) for token in range(VOCAB)], SampleParams(), [1], [])
    assert sample_all([nothing, anything]) == [RowResult(0, failed=True), RowResult(1, [VOCAB - 1])]


HIGH = [4.0, 3.5, 3.0, -1.0]
LOW = [-1.0, -1.5, -4.0, -9.0]


@pytest.mark.parametrize(
    ("logits", "params", "prompt", "generated", "expected"),
    [
        (HIGH, SampleParams(presence=0.75), [1], [0], 1),
        (HIGH, SampleParams(presence=0.75), [0], [], 0),
        (HIGH, SampleParams(presence=0.4), [1], [0] * 9, 0),
        (HIGH, SampleParams(frequency=0.25), [1], [0], 0),
        (HIGH, SampleParams(frequency=0.25), [1], [0] * 3, 1),
        (HIGH, SampleParams(frequency=-0.5), [0], [1, 1], 1),
        (HIGH, SampleParams(repetition=2.0), [0], [1], 2),
        (LOW, SampleParams(repetition=2.0), [0], [], 1),
        (LOW, SampleParams(repetition=2.0, presence=3.0), [1], [0], 1),
        (HIGH, SampleParams(bias={3: 6.0}), [1], [], 3),
        (HIGH, SampleParams(bias={0: -100.0, 1: -0.75}), [1], [], 2),
    ],
)
def test_penalties_and_biases_change_the_likeliest_token_by_their_formulas(
    logits: list[float], params: SampleParams, prompt: list[int], generated: list[int], expected: int
) -> None:
    (result,) = sample_all([Asked(logits, params, prompt, generated)])
    assert result.tokens == [expected]
