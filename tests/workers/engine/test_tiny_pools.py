"""In a pool too small for all that comes, whoever is let in ends, with the right tokens and in time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import PromptTooLong
from tests.workers.engine.engine_desk import Desk, small_settings, spec_of
from tests.workers.engine.witness_runner import expect_tokens
from workers.engine.sequence import SequenceSpec

BLOCK = 4
CONTEXT = 40
MOST_SEQUENCES = 8

ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, CONTEXT),  # tokens of the prompt
        st.integers(1, CONTEXT),  # most tokens of the answer
        st.integers(0, 1),  # priority
        st.integers(0, 6),  # steps until the next one comes
    ),
    min_size=1,
    max_size=MOST_SEQUENCES,
)


def most_steps(specs: list[SequenceSpec]) -> int:
    """The highest ranked of those that run gets a token further each step, and yields to none of them.

    So all of them end within as many steps as they have tokens, if nobody comes; whoever comes may cost them
    that much again.
    """
    return (len(specs) + 1) * sum(len(spec.tokens) + spec.max_tokens for spec in specs)


@settings(max_examples=150, deadline=None)
@given(arrivals=ARRIVALS, num_blocks=st.integers(1, 10), num_sequences=st.integers(1, 4))
def test_whoever_is_let_in_ends_with_the_right_tokens_and_others_are_refused_at_once(
    arrivals: list[tuple[int, int, int, int]], num_blocks: int, num_sequences: int
) -> None:
    desk = Desk(small_settings(num_blocks=num_blocks, max_sequences=num_sequences))
    room = min(CONTEXT, num_blocks * BLOCK)
    specs: list[SequenceSpec] = []
    for number, (num_prompt, max_tokens, priority, num_steps) in enumerate(arrivals):
        prompt = [(number * 7 + place * 3) % 50 for place in range(num_prompt)]
        spec = spec_of(f"s{number}", prompt, max_tokens=max_tokens, priority=priority)
        if num_prompt >= room:
            with pytest.raises(PromptTooLong):
                desk.engine.add(spec)
            continue
        desk.engine.add(spec)
        specs.append(spec)
        for _ in range(num_steps):
            desk.engine.step_once()
    desk.step_to_rest(most_steps(specs) + 1)
    desk.assert_at_rest()
    for spec in specs:
        assert not desk.record.faults
        found = desk.record.tokens[spec.sequence], desk.record.finishes[spec.sequence]
        assert found == expect_tokens(spec, room)
