"""The stream machine: whatever the wire does, the tokens are exactly right and the request ends once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.requests.actions import (
    AcknowledgeEnd,
    AskResend,
    CancelAttempt,
    CancelQueued,
    Route,
)
from frontend.requests.stream_rules import StreamRules
from frontend.requests.stream_state import StreamState
from proto.errors import (
    DeadlineExceeded,
    Disconnected,
    GoElsewhere,
    InvalidRequest,
    KvmeshError,
    NoResponder,
    NoWorker,
    Overloaded,
    WorkerLost,
    WorkerNotReady,
    to_fault,
)
from proto.logprobs import TokenLogprobs, pack_logprobs, unpack_logprobs
from proto.streams import End, Frame, LiveOffset, Prefilled
from proto.tokens import pack_tokens
from tests.frontend.requests.wire_model import ModelWire

RULES = StreamRules(
    accept_s=2.0, queued_s=60.0, silence_s=3.0, resend_s=5.0, outage_s=20.0, reroute_s=30.0, max_lost=3
)


def make_state(max_tokens: int = 100, stop_tokens: frozenset[int] = frozenset()) -> StreamState:
    return StreamState(RULES, max_tokens=max_tokens, stop_tokens=stop_tokens, limit_s=600.0, now=0.0)


def frame(offset: int, tokens: list[int], attempt: int = 0, end: End | None = None) -> Frame:
    return Frame("r", attempt, offset, pack_tokens(tokens), end)


def streaming(tokens: list[int] | None = None) -> StreamState:
    """A request that worker w0 has accepted and answered so far with `tokens`."""
    state = make_state()
    assert state.start() == (Route(0, 0, ()),)
    assert state.apply_routed(0, "w0", 0.0) == ()
    assert state.apply_frame("w0", frame(0, []), 0.0) == ()
    assert state.apply_frame("w0", frame(0, tokens or []), 0.0) == ()
    return state


def tokens_told(state: StreamState) -> list[int]:
    """Of which tokens the records are: a model worker writes that where the rank goes."""
    return [unpack_logprobs(record).rank for record in state.records]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 25), st.integers(0, 25))
def test_whatever_the_wire_does_the_tokens_are_exact_and_the_request_ends_once(
    data: st.DataObject, num_tokens: int, num_faults: int
) -> None:
    answer = [1000 + place for place in range(num_tokens)]
    state = make_state(max_tokens=num_tokens)
    wire = ModelWire(data, state, answer, num_faults)
    wire.run(limit_s=300.0)
    assert isinstance(state.outcome, End), state.outcome
    assert state.outcome.finish == "length"
    assert state.tokens == answer
    assert tokens_told(state) == answer
    assert wire.is_at_rest, "a worker still holds the request"


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(0, 20), st.floats(0.0, 1.5))
def test_a_client_that_leaves_at_any_time_leaves_nothing_on_any_worker(
    data: st.DataObject, num_faults: int, leaves_at: float
) -> None:
    state = make_state(max_tokens=60)
    wire = ModelWire(data, state, list(range(60)), num_faults)
    wire.call_at(leaves_at, state.cancel)
    wire.run(limit_s=300.0)
    assert isinstance(state.outcome, End)
    assert state.outcome.finish in ("cancelled", "length")
    assert wire.is_at_rest, "a worker still holds the request"


def test_repeated_tokens_are_taken_once() -> None:
    state = streaming([7, 8])
    state.apply_frame("w0", frame(1, [8, 9]), 0.1)
    state.apply_frame("w0", frame(0, [7, 8, 9]), 0.1)
    assert state.tokens == [7, 8, 9]


def test_a_token_keeps_the_record_that_it_came_with() -> None:
    def told(offset: int, tokens: list[int], logprob: float, attempt: int) -> Frame:
        records = pack_logprobs([TokenLogprobs(logprob, token) for token in tokens])
        return Frame("r", attempt, offset, pack_tokens(tokens), logprobs=records)

    state = streaming([])
    state.apply_frame("w0", told(0, [7, 8], -1.0, 0), 0.1)
    state.apply_frame("w0", told(1, [8, 9], -2.0, 0), 0.1)
    state.apply_lost("w0", 0.2)
    state.apply_routed(1, "w1", 0.2)
    state.apply_frame("w1", Frame("r", 1, 3), 0.3)
    state.apply_frame("w1", told(2, [9, 10], -3.0, 1), 0.3)
    assert state.tokens == [7, 8, 9, 10]
    assert tokens_told(state) == state.tokens
    assert [unpack_logprobs(record).logprob for record in state.records] == [-1.0, -1.0, -2.0, -3.0]


def test_a_gap_asks_for_a_resend_and_what_came_meanwhile_is_kept() -> None:
    state = streaming([7])
    assert state.apply_frame("w0", frame(2, [9]), 0.1) == (AskResend("w0", 0, 1),)
    assert state.apply_frame("w0", frame(3, [10], end=End("stop")), 0.2) == ()
    assert state.apply_resent("w0", frame(1, [8, 9]), 0.3) == (AcknowledgeEnd("w0", 0),)
    assert state.tokens == [7, 8, 9, 10]
    assert state.outcome == End("stop")


def test_how_the_prompt_was_prefilled_comes_with_its_first_token_and_no_replay_changes_it() -> None:
    state, prefilled = streaming(), Prefilled(32, "remote", "p0")
    state.apply_frame("w0", Frame("r", 0, 0, pack_tokens([7]), prefilled=prefilled), 0.1)
    assert state.prefilled == prefilled
    state.apply_lost("w0", 0.2)
    state.apply_routed(1, "w1", 0.2)
    state.apply_frame("w1", Frame("r", 1, 1, pack_tokens([8]), End("stop"), Prefilled(48)), 0.3)
    assert state.tokens == [7, 8]
    assert state.prefilled == prefilled


def test_a_worker_of_an_earlier_version_says_at_the_end_how_the_prompt_was_prefilled() -> None:
    state = streaming([7])
    end = End("stop", cached_tokens=32, prefill="remote", prefill_worker="p0")
    state.apply_frame("w0", frame(1, [8], end=end), 0.1)
    assert state.prefilled == Prefilled(32, "remote", "p0")


@pytest.mark.parametrize(
    "live", [LiveOffset("r", 0, 2), LiveOffset("r", 0, 1, has_ended=True)], ids=["tokens", "end"]
)
def test_a_lost_tail_shows_in_the_live_offsets(live: LiveOffset) -> None:
    assert streaming([7]).apply_offset("w0", live, 0.5) == (AskResend("w0", 0, 1),)


def test_silence_of_a_living_worker_asks_for_a_resend_before_anything_moves() -> None:
    state = streaming([7])
    assert state.apply_tick(2.9) == ()
    assert state.apply_tick(3.0) == (AskResend("w0", 0, 1),)
    state.apply_resent("w0", frame(1, []), 3.1)
    assert state.apply_tick(4.0) == ()
    assert state.attempt == 0


def test_a_resend_that_is_refused_moves_the_request_with_its_tokens() -> None:
    state = streaming([7])
    state.apply_tick(3.0)
    refusal = InvalidRequest(field="request", reason="unknown")
    assert state.apply_resend_failed(0, refusal, 3.1) == (CancelAttempt("w0", 0), Route(1, 1, ("w0",)))


def test_no_responder_to_a_resend_is_borne_for_a_bound_only() -> None:
    state = streaming([7])
    gone = NoResponder(subject="w0")
    state.apply_tick(3.0)
    assert state.apply_resend_failed(0, gone, 3.0) == ()
    assert state.apply_tick(3.5) == (AskResend("w0", 0, 1),)
    assert state.apply_resend_failed(0, gone, 8.1)[-1] == Route(1, 1, ("w0",))


def test_a_bus_outage_moves_nothing_and_ends_in_a_typed_error_when_it_lasts() -> None:
    state = streaming([7])
    state.apply_tick(3.0)
    assert state.apply_resend_failed(0, Disconnected(peer="nats"), 3.0) == ()
    assert state.apply_tick(10.0) == (AskResend("w0", 0, 1),)
    assert state.apply_resend_failed(0, Disconnected(peer="nats"), 10.0) == ()
    assert state.apply_tick(23.5) == (AskResend("w0", 0, 1),)
    state.apply_resend_failed(0, Disconnected(peer="nats"), 23.5)
    assert isinstance(state.outcome, Disconnected)
    assert state.attempt == 0


def test_a_lost_worker_moves_the_request_and_its_late_frames_are_ignored() -> None:
    state = streaming([7, 8])
    assert state.apply_lost("w0", 4.0)[-1] == Route(1, 2, ("w0",))
    state.apply_routed(1, "w1", 4.1)
    assert state.apply_frame("w0", frame(2, [99]), 4.2) == ()
    state.apply_frame("w1", frame(2, [], attempt=1), 4.2)
    state.apply_frame("w1", frame(2, [9], attempt=1), 4.3)
    assert state.tokens == [7, 8, 9]


def test_the_end_of_an_older_attempt_is_acknowledged_and_ends_nothing() -> None:
    state = streaming([7])
    state.apply_lost("w0", 4.0)
    assert state.apply_frame("w0", frame(1, [8], end=End("stop")), 4.1) == (AcknowledgeEnd("w0", 0),)
    assert state.outcome is None


def test_three_lost_workers_are_borne_and_a_fourth_is_not() -> None:
    state = streaming([7])
    for number in range(3):
        state.apply_lost(f"w{number}", 4.0 + number)
        state.apply_tick(4.9 + number)
        state.apply_routed(number + 1, f"w{number + 1}", 4.9 + number)
        assert state.outcome is None
    state.apply_lost("w3", 8.0)
    assert isinstance(state.outcome, WorkerLost)
    assert state.outcome.values == {"num_lost": 4}


def test_a_worker_that_does_not_accept_in_time_is_left_out_and_does_not_count_as_lost() -> None:
    state = make_state()
    state.start()
    state.apply_routed(0, "w0", 0.0)
    assert state.apply_tick(1.9) == ()
    assert state.apply_tick(2.0) == (CancelAttempt("w0", 0), Route(1, 0, ("w0",)))
    assert state.num_lost == 0


def test_frames_before_the_routers_answer_count_as_acceptance() -> None:
    state = make_state()
    state.start()
    state.apply_frame("w0", frame(0, []), 0.1)
    state.apply_frame("w0", frame(0, [7]), 0.1)
    assert state.apply_routed(0, "w0", 0.2) == ()
    assert state.apply_tick(2.5) == ()
    assert state.tokens == [7]


def test_of_two_workers_on_one_attempt_the_first_to_answer_keeps_it() -> None:
    state = streaming([7])
    assert state.apply_frame("w9", frame(0, []), 0.1) == (CancelAttempt("w9", 0),)
    assert state.apply_routed(0, "w9", 0.1) == (CancelAttempt("w9", 0),)
    assert state.worker == "w0"


def test_a_queued_request_waits_at_its_router_until_that_is_lost() -> None:
    state = make_state()
    state.start()
    state.apply_queued(0, "router-1", 5.0, 0.0)
    assert state.apply_tick(50.0) == ()
    assert state.apply_lost("router-1", 51.0) == (CancelQueued("router-1", 0), Route(1, 0, ()))


@pytest.mark.parametrize(
    "error",
    [
        NoResponder(subject="route"),
        NoWorker(model="m"),
        WorkerNotReady(worker="w0", state="draining"),
        Overloaded(reason="full", retry_after_s=1),
        Disconnected(peer="nats"),
    ],
    ids=lambda error: error.code,
)
def test_a_first_refusal_is_the_answer(error: KvmeshError) -> None:
    state = make_state()
    state.start()
    assert state.apply_route_failed(0, error, 0.1) == ()
    assert state.outcome is error


@pytest.mark.parametrize(
    "error",
    [GoElsewhere(worker="w0", reason="draining"), DeadlineExceeded(what="route", limit_s=5.0)],
    ids=lambda error: error.code,
)
def test_go_elsewhere_and_a_silent_router_cost_the_client_nothing(error: KvmeshError) -> None:
    state = make_state()
    state.start()
    assert state.apply_route_failed(0, error, 0.1) == (Route(1, 0, ()),)


def test_retries_pause_longer_each_time_and_end_at_a_bound() -> None:
    state = make_state()
    actions = state.start()
    now, num_routes = 0.0, 0
    while state.outcome is None:
        if actions:
            num_routes += 1
            refusal = GoElsewhere(worker="w", reason="draining")
            actions = state.apply_route_failed(state.attempt, refusal, now)
        else:
            now += 0.1
            actions = state.apply_tick(now)
    assert isinstance(state.outcome, GoElsewhere)
    assert 30.0 <= now <= 31.5
    assert num_routes < 45


def test_no_worker_but_the_excluded_ones_takes_them_back() -> None:
    state = streaming([7])
    state.apply_lost("w0", 4.0)
    state.apply_route_failed(1, NoWorker(model="m"), 4.1)
    assert state.apply_tick(5.2) == (Route(2, 1, ()),)


def test_a_retriable_end_goes_on_elsewhere_and_another_is_the_clients() -> None:
    state = streaming([7])
    busy = End(None, fault=to_fault(Overloaded(reason="pool", retry_after_s=1)))
    assert state.apply_frame("w0", frame(1, [], end=busy), 0.5) == (
        AcknowledgeEnd("w0", 0),
        Route(1, 1, ("w0",)),
    )
    wrong = End(None, fault=to_fault(InvalidRequest(field="seed", reason="no")))
    state.apply_frame("w1", frame(1, [], attempt=1, end=wrong), 0.6)
    assert isinstance(state.outcome, InvalidRequest)


def test_a_worker_that_cancels_by_itself_does_not_end_the_request() -> None:
    state = streaming([7])
    actions = state.apply_frame("w0", frame(1, [], end=End("cancelled")), 0.5)
    assert actions == (AcknowledgeEnd("w0", 0), Route(1, 1, ("w0",)))


@pytest.mark.parametrize(("last", "finish"), [(3, "length"), (2, "stop")])
def test_a_worker_lost_after_the_last_token_costs_no_move(last: int, finish: str) -> None:
    state = make_state(max_tokens=2, stop_tokens=frozenset({2}))
    state.start()
    state.apply_frame("w0", frame(0, [1, last] if finish == "length" else [last]), 0.1)
    state.apply_lost("w0", 4.0)
    assert state.outcome == End(finish)  # type: ignore[arg-type]


def test_the_deadline_ends_the_request_and_cancels_it() -> None:
    state = streaming([7])
    assert state.apply_tick(600.0) == (CancelAttempt("w0", 0),)
    assert isinstance(state.outcome, DeadlineExceeded)


def test_a_client_that_left_before_the_choice_was_known_is_cancelled_after_it() -> None:
    state = make_state()
    state.start()
    assert state.cancel() == ()
    assert state.apply_routed(0, "w0", 0.1) == (CancelAttempt("w0", 0),)
    assert state.apply_queued(0, "router-1", 1.0, 0.1) == (CancelQueued("router-1", 0),)
    assert state.apply_frame("w0", frame(0, []), 0.1) == (CancelAttempt("w0", 0),)
    assert state.apply_offset("w0", LiveOffset("r", 0, 3), 0.2) == (CancelAttempt("w0", 0),)
    assert state.apply_offset("w0", LiveOffset("r", 0, 3, has_ended=True), 0.3) == (AcknowledgeEnd("w0", 0),)
