"""Signs of life name their process, whoever sends them."""

from proto.codec import encode
from proto.reports import BEATS, AnyBeat, Beat, LoadReport, process_of
from proto.roles import Role, WorkerState


def test_the_process_of_any_beat_is_known() -> None:
    beats: list[AnyBeat] = [
        Beat("f1", "frontend", "life"),
        LoadReport("w1", "m", "life", 3, Role.DECODE, WorkerState.READY),
    ]
    assert [process_of(BEATS.decode(encode(beat))) for beat in beats] == ["f1", "w1"]
