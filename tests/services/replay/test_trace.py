"""The format of a trace: what is written is read, and what is no request is refused with its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InvalidSetting
from services.replay.trace import TraceRequest, num_blocks, possible_hit_rate, read_trace, write_trace

PUBLIC = (
    '{"timestamp": 27482, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 1024, "output_length": 26, "hash_ids": [46, 2354]}\n'
)


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    lengths = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=5))
    times = sorted(draw(st.lists(st.integers(0, 10**9), min_size=len(lengths), max_size=len(lengths))))
    ids = st.integers(0, 2**62)
    return [
        TraceRequest(
            at, length, draw(st.integers(1, 4096)), tuple(draw(ids) for _ in range(num_blocks(length)))
        )
        for at, length in zip(times, lengths, strict=True)
    ]


@given(traces())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRequest]
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.jsonl"
    write_trace(path, requests)
    assert read_trace(path) == requests


def test_lines_of_the_public_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "public.jsonl"
    path.write_text(PUBLIC)
    first, second = read_trace(path)
    assert first == TraceRequest(27482, 655, 52, (46, 47))
    assert second.hash_ids == (46, 2354)


def test_blank_lines_and_fields_of_others_are_skipped_and_requests_come_by_time(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    late, early = PUBLIC.replace("27482", "99000.5").splitlines()
    path.write_text(f"{late}\n\n" + early.replace("}", ', "session": "a"}'))
    assert [request.timestamp for request in read_trace(path)] == [30535, 99000.5]


def test_no_more_lines_are_read_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(PUBLIC + "not a request")
    assert len(read_trace(path, 2)) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "truncated"),
        ("[1]", "Expected `object`"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5}', "hash_ids"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 5, "hash_ids": [1]}', ">= 0"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 5, "hash_ids": []}', ">= 1"),
        ('{"timestamp": 1, "input_length": "5", "output_length": 5, "hash_ids": [1]}', "Expected `int`"),
        ('{"timestamp": 1, "input_length": 513, "output_length": 5, "hash_ids": [1]}', "are 2 blocks"),
        ('{"timestamp": 1, "input_length": 512, "output_length": 5, "hash_ids": [1, 2]}', "are 1 blocks"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": ["\udcff"]}', ""),
    ],
)
def test_a_line_that_is_no_request_is_refused_by_its_number(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(PUBLIC.encode() + line.encode(errors="surrogateescape"))
    with pytest.raises(InvalidSetting) as refused:
        read_trace(path)
    assert refused.value.values["setting"] == f"{path}:3"
    assert reason in str(refused.value)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_trace_without_requests_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidSetting, match="no requests"):
        read_trace(path)


def test_a_file_that_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"none\.jsonl: No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(InvalidSetting, match="No such file"):
        write_trace(tmp_path / "none" / "trace.jsonl", [])


def test_the_possible_hit_rate_counts_leading_blocks_that_came_before() -> None:
    trace = [
        TraceRequest(0, 1024, 1, (1, 2)),
        TraceRequest(1, 1024, 1, (1, 3)),  # a block of two
        TraceRequest(2, 1024, 1, (4, 2)),  # its second block is known, but not as a prefix
        TraceRequest(3, 600, 1, (1, 3)),  # all, and its last block is cut
    ]
    assert possible_hit_rate(trace) == (512 + 600) / (3 * 1024 + 600)
