"""A request whose worker wants to let it go: it moves once another one has it; else nothing has happened."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.requests.actions import AcknowledgeEnd, AskResend, CancelAttempt, CancelQueued, Route
from frontend.requests.stream_state import StreamState
from proto.errors import DeadlineExceeded, GoElsewhere, KvmeshError, NoWorker, Overloaded, to_fault
from proto.requests import KvSource
from proto.streams import End, LiveOffset
from tests.frontend.requests.test_stream_state import frame, make_state, streaming
from tests.frontend.requests.wire_model import ModelWire

SOURCE = KvSource("w0", "life 1", 0)
ELSEWHERE = End(None, fault=to_fault(GoElsewhere(worker="w0", reason="it is leaving")))


def moving(tokens: list[int]) -> StreamState:
    """A request that w0 serves and w1 has accepted as the successor."""
    state = streaming(tokens)
    assert state.apply_wish(SOURCE, 0.1) == (Route(1, len(tokens), ("w0",), SOURCE),)
    assert state.apply_routed(1, "w1", 0.1) == ()
    assert state.apply_frame("w1", frame(len(tokens), [], attempt=1), 0.1) == ()
    return state


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 25), st.integers(0, 25))
def test_whoever_leaves_dies_or_hands_over_the_tokens_are_exact_and_the_request_ends_once(
    data: st.DataObject, num_tokens: int, num_faults: int
) -> None:
    answer = [1000 + place for place in range(num_tokens)]
    state = make_state(max_tokens=num_tokens)
    wire = ModelWire(data, state, answer, num_faults, has_leavers=True)
    wire.run(limit_s=300.0)
    assert isinstance(state.outcome, End), state.outcome
    assert state.outcome.finish == "length"
    assert state.tokens == answer
    assert wire.is_at_rest, "a worker still holds the request"


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(0, 20), st.floats(0.0, 1.5))
def test_a_client_that_leaves_in_mid_move_leaves_nothing_on_either_worker(
    data: st.DataObject, num_faults: int, leaves_at: float
) -> None:
    state = make_state(max_tokens=60)
    wire = ModelWire(data, state, list(range(60)), num_faults, has_leavers=True)
    wire.call_at(leaves_at, state.cancel)
    wire.run(limit_s=300.0)
    assert isinstance(state.outcome, End)
    assert wire.is_at_rest, "a worker still holds the request"


def test_the_old_attempt_counts_until_the_successors_tokens_reach_as_far() -> None:
    state = moving([7])
    assert state.apply_frame("w0", frame(1, [8, 9]), 0.2) == ()
    assert state.apply_frame("w1", frame(1, [8], attempt=1), 0.3) == ()
    assert (state.tokens, state.attempt, state.worker) == ([7, 8, 9], 0, "w0")
    assert state.apply_frame("w1", frame(2, [9, 10], attempt=1), 0.4) == (CancelAttempt("w0", 0),)
    assert (state.tokens, state.attempt, state.worker) == ([7, 8, 9, 10], 1, "w1")
    assert state.apply_frame("w0", frame(3, [10]), 0.5) == ()
    assert state.tokens == [7, 8, 9, 10]
    assert state.num_lost == 0


def test_a_successor_that_has_taken_over_need_not_show_a_token() -> None:
    state = moving([])
    taken = msgspec.structs.replace(frame(0, [], attempt=1), has_taken_over=True)
    assert state.apply_frame("w1", taken, 0.2) == (CancelAttempt("w0", 0),)
    assert (state.attempt, state.worker) == (1, "w1")


def test_a_successor_that_took_over_less_than_is_known_here_waits_for_more() -> None:
    state = moving([7])
    assert state.apply_frame("w0", frame(1, [8, 9]), 0.2) == ()
    taken = msgspec.structs.replace(frame(1, [8], attempt=1), has_taken_over=True)
    assert state.apply_frame("w1", taken, 0.3) == ()
    assert (state.attempt, state.worker) == (0, "w0")


def test_a_wish_that_is_said_again_while_a_successor_is_on_its_way_issues_no_other() -> None:
    assert moving([7]).apply_wish(SOURCE, 0.6) == ()


def test_a_wish_for_an_attempt_that_is_over_ends_it() -> None:
    state = streaming([7])
    state.apply_lost("w0", 4.0)
    assert state.apply_wish(SOURCE, 4.1) == (CancelAttempt("w0", 0),)
    state = streaming([7])
    state.apply_frame("w0", frame(1, [], end=End("stop")), 0.1)
    assert state.apply_wish(SOURCE, 0.2) == (CancelAttempt("w0", 0),)


@pytest.mark.parametrize(
    "error",
    [NoWorker(model="m"), Overloaded(reason="full", retry_after_s=1), DeadlineExceeded(what="r", limit_s=1)],
    ids=lambda error: error.code,
)
def test_a_successor_that_nobody_takes_costs_nothing_and_is_tried_again(error: KvmeshError) -> None:
    state = streaming([7])
    state.apply_wish(SOURCE, 0.1)
    assert state.apply_route_failed(1, error, 0.2) == ()
    assert state.apply_frame("w0", frame(1, [8]), 0.3) == ()
    assert state.apply_wish(SOURCE, 0.6) == (Route(2, 2, ("w0",), SOURCE),)
    assert (state.tokens, state.attempt, state.outcome) == ([7, 8], 0, None)


def test_a_successor_that_a_router_queues_all_the_same_is_taken_back() -> None:
    state = streaming([7])
    state.apply_wish(SOURCE, 0.1)
    assert state.apply_queued(1, "router-1", 1.0, 0.2) == (CancelQueued("router-1", 1),)
    assert state.apply_wish(SOURCE, 0.6) == (Route(2, 1, ("w0",), SOURCE),)


def test_a_successor_that_ends_or_is_lost_before_its_turn_leaves_the_old_attempt_alone() -> None:
    state = moving([7])
    assert state.apply_frame("w1", frame(1, [], attempt=1, end=ELSEWHERE), 0.2) == (AcknowledgeEnd("w1", 1),)
    state.apply_wish(SOURCE, 0.3)
    state.apply_routed(2, "w2", 0.3)
    assert state.apply_lost("w2", 0.4) == ()
    state.apply_frame("w0", frame(1, [8], end=End("stop")), 0.5)
    assert (state.tokens, state.outcome, state.num_lost) == ([7, 8], End("stop"), 0)


def test_a_successor_that_is_not_heard_is_cancelled() -> None:
    state = streaming([7])
    state.apply_wish(SOURCE, 0.1)
    state.apply_routed(1, "w1", 0.2)
    assert state.apply_tick(2.1) == ()
    assert state.apply_tick(2.2) == (CancelAttempt("w1", 1),)
    assert (state.attempt, state.outcome) == (0, None)


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_source_that_is_lost_leaves_the_request_to_its_successor(is_accepted: bool) -> None:
    state = streaming([7])
    state.apply_wish(SOURCE, 0.1)
    if is_accepted:
        state.apply_frame("w1", frame(1, [], attempt=1), 0.2)
    state.apply_frame("w0", frame(1, [8]), 0.3)
    assert CancelAttempt("w0", 0) in state.apply_lost("w0", 0.4)
    state.apply_routed(1, "w1", 0.5)
    state.apply_frame("w1", frame(1, [8], attempt=1), 0.6)
    state.apply_frame("w1", frame(2, [9], attempt=1), 0.7)
    assert (state.tokens, state.attempt, state.num_lost) == ([7, 8, 9], 1, 1)


def test_a_source_that_sends_its_work_elsewhere_leaves_it_to_the_successor() -> None:
    state = moving([7])
    assert state.apply_frame("w0", frame(1, [], end=ELSEWHERE), 0.2) == (AcknowledgeEnd("w0", 0),)
    state.apply_frame("w1", frame(1, [8], attempt=1), 0.3)
    assert (state.tokens, state.attempt, state.num_lost) == ([7, 8], 1, 0)


def test_a_successor_lost_after_its_turn_is_a_lost_worker_as_any() -> None:
    state = moving([7])
    state.apply_frame("w1", frame(1, [8], attempt=1), 0.2)
    assert state.apply_lost("w1", 4.0) == (CancelAttempt("w1", 1), Route(2, 2, ("w1",)))
    assert state.num_lost == 1


def test_an_answer_that_ends_at_its_source_calls_the_successor_off() -> None:
    state = moving([7])
    actions = state.apply_frame("w0", frame(1, [8], end=End("stop")), 0.2)
    assert actions == (AcknowledgeEnd("w0", 0), CancelAttempt("w1", 1))
    assert state.outcome == End("stop")


def test_a_successor_that_was_never_seen_is_cancelled_where_it_shows() -> None:
    state = streaming([7])
    state.apply_wish(SOURCE, 0.1)
    assert state.cancel() == (CancelAttempt("w0", 0),)
    assert state.apply_routed(1, "w1", 0.2) == (CancelAttempt("w1", 1),)
    assert state.apply_frame("w1", frame(1, [], attempt=1), 0.2) == (CancelAttempt("w1", 1),)


def test_a_successor_whose_first_tokens_were_lost_shows_by_its_offsets() -> None:
    state = moving([7])
    assert state.apply_offset("w1", LiveOffset("r", 1, 3), 1.0) == (
        CancelAttempt("w0", 0),
        AskResend("w1", 1, 1),
    )
    state.apply_resent("w1", frame(1, [8, 9], attempt=1), 1.1)
    assert (state.tokens, state.worker) == ([7, 8, 9], "w1")


def test_of_two_workers_on_one_successor_the_first_to_answer_keeps_it() -> None:
    state = moving([7])
    assert state.apply_frame("w9", frame(1, [], attempt=1), 0.2) == (CancelAttempt("w9", 1),)
    assert state.apply_routed(1, "w9", 0.2) == (CancelAttempt("w9", 1),)
    assert state.apply_offset("w9", LiveOffset("r", 1, 1), 0.2) == (CancelAttempt("w9", 1),)
