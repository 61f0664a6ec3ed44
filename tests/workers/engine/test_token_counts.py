"""Counts of a sequence's tokens, taken in as it grows, are those of counting all of them at once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.workers.engine.engine_desk import Desk, spec_of
from workers.engine.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 9), max_size=30)


@given(prompt=TOKENS, generated=TOKENS, cuts=st.lists(st.integers(0, 60), max_size=5), sees=st.booleans())
def test_counts_do_not_depend_on_how_the_tokens_came(
    prompt: list[int], generated: list[int], cuts: list[int], sees: bool
) -> None:
    whole = prompt + generated
    seen = prompt if sees else []
    counts = TokenCounts(seen, len(prompt))
    for end in [*sorted(cut for cut in cuts if cut >= len(prompt)), len(whole)]:
        counts.catch_up(whole[:end])
    found = dict(zip(counts.tokens, counts.counts, strict=True))
    assert found == {token: Counter(generated)[token] for token in seen + generated}
    assert len(counts.tokens) == len(found), "no token stands twice"


@given(prompt=TOKENS, generated=TOKENS, more=TOKENS)
def test_counts_after_drafts_are_those_of_as_many_more_tokens_and_nothing_is_kept(
    prompt: list[int], generated: list[int], more: list[int]
) -> None:
    counts = TokenCounts(prompt, len(prompt))
    counts.catch_up(prompt + generated)
    before = dict(zip(counts.tokens, counts.counts, strict=True))
    found = counts.after(more)
    assert len(found.tokens) == len(set(found.tokens)), "no token stands twice"
    whole = Counter(generated + more)
    expected = {token: whole[token] for token in prompt + generated + more}
    assert dict(zip(found.tokens, found.counts, strict=True)) == expected
    assert dict(zip(counts.tokens, counts.counts, strict=True)) == before


def test_only_a_sequence_that_penalises_is_counted() -> None:
    desk = Desk()
    desk.engine.add(spec_of("plain", [1, 2, 3]))
    plan = desk.engine.begin_step()
    assert plan is not None
    assert plan.rows[0].counts is None
    desk.engine.end_step(plan)
