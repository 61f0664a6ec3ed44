"""What a frontend counts of each model: all that comes is counted once, and nothing waits at the end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.traffic import Traffic
from proto.traffic import LATENCY_BOUNDS_S, ModelTraffic


def test_a_request_is_counted_from_its_sending_to_its_end() -> None:
    traffic = Traffic()
    account = traffic.begin("m", 100)
    assert traffic.report() == [
        ModelTraffic("m", num_begun=1, prompt_tokens=100, num_waiting=1, waiting_tokens=100)
    ]
    account.note_first(0.0001, 1, cached_tokens=64)
    account.note_next(0.0002, 3)
    account.end(cached_tokens=64)
    assert traffic.report() == [
        ModelTraffic(
            "m",
            num_begun=1,
            num_ended=1,
            prompt_tokens=100,
            cached_tokens=64,
            output_tokens=4,
            answer_tokens=4,
            ttft_counts=[1],
            itl_counts=[0, 0, 0, 3],
        )
    ]


def test_a_latency_beyond_every_bound_is_counted_too() -> None:
    traffic = Traffic()
    traffic.begin("m", 1).note_first(LATENCY_BOUNDS_S[-1] + 1.0, 1, cached_tokens=0)
    assert traffic.report()[0].ttft_counts == [0] * len(LATENCY_BOUNDS_S) + [1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50), st.booleans(), st.integers(0, 3))))
def test_nothing_waits_once_all_have_ended(requests: list[tuple[str, int, bool, int]]) -> None:
    traffic = Traffic()
    for model, prompt_tokens, has_tokens, num_ends in requests:
        account = traffic.begin(model, prompt_tokens)
        if has_tokens:
            account.note_first(0.1, 1, cached_tokens=0)
        for _ in range(num_ends + 1):
            account.end(cached_tokens=0)
    for report in traffic.report():
        assert (report.num_waiting, report.waiting_tokens) == (0, 0)
        assert report.num_ended == report.num_begun == sum(model == report.model for model, *_ in requests)
        assert report.output_tokens == report.answer_tokens == sum(report.ttft_counts)
