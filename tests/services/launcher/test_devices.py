"""Device sets: what may be written, and where each worker ends up."""

from pathlib import Path

import pytest

from proto.errors import InvalidSetting
from services.launcher.devices import Machine, Place, parse_places, place_workers, this_machine

LAPTOP = Machine(cores=(0, 1), gpus=())
SERVER = Machine(cores=tuple(range(8)), gpus=(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("0", 0),
        ("3", 3),
        ("cpu:0", [Place("cpu", (0,))]),
        ("cpu:0-2", [Place("cpu", (0, 1, 2))]),
        ("cpu:0, cpu:2-3", [Place("cpu", (0,)), Place("cpu", (2, 3))]),
        ("cuda:1", [Place("cuda:1")]),
        ("cuda:0-2,cpu:5", [Place("cuda:0"), Place("cuda:1"), Place("cuda:2"), Place("cpu", (5,))]),
    ],
)
def test_a_device_set_is_a_number_or_a_place_for_each_worker(text: str, places: int | list[Place]) -> None:
    assert parse_places(text, "up.decode") == places


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "gpu:0", "cpu", "cpu:", "cpu:3-1", "cpu:0,,cpu:1", "cuda:a"]
)
def test_what_is_no_device_set_is_refused_by_the_name_of_its_setting(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"up\.decode"):
        parse_places(text, "up.decode")


def test_two_counted_workers_on_two_cores_get_one_each() -> None:
    assert place_workers([1, 1], LAPTOP) == [[Place("cpu", (0,))], [Place("cpu", (1,))]]


def test_counted_workers_share_all_cores_in_equal_runs() -> None:
    machine = Machine(cores=tuple(range(7)), gpus=())
    assert place_workers([1, 2], machine) == [
        [Place("cpu", (0, 1))],
        [Place("cpu", (2, 3)), Place("cpu", (4, 5, 6))],
    ]


def test_more_workers_than_cores_are_not_pinned() -> None:
    assert place_workers([1, 2], LAPTOP) == [[Place("cpu")], [Place("cpu"), Place("cpu")]]


def test_counted_workers_leave_named_cores_alone() -> None:
    assert place_workers([[Place("cpu", (1,))], 1], LAPTOP) == [[Place("cpu", (1,))], [Place("cpu", (0,))]]


def test_counted_workers_take_gpus_where_there_are_any_and_share_them_when_few() -> None:
    machine = Machine(cores=(0, 1), gpus=(0, 1))
    assert place_workers([1, 2], machine) == [[Place("cuda:0")], [Place("cuda:1"), Place("cuda:0")]]


def test_counted_workers_prefer_gpus_that_nobody_named() -> None:
    named = [Place("cuda:0"), Place("cuda:1")]
    assert place_workers([named, 2], SERVER) == [named, [Place("cuda:2"), Place("cuda:3")]]
    assert place_workers([[Place("cuda:0")], 1], Machine((0,), (0,))) == [[Place("cuda:0")]] * 2


@pytest.mark.parametrize("place", [Place("cpu", (0, 9)), Place("cuda:4")])
def test_a_place_that_this_machine_lacks_is_refused(place: Place) -> None:
    with pytest.raises(InvalidSetting, match=r"core 9|cuda:4"):
        place_workers([[place], 1], SERVER)


def test_gpus_are_counted_by_their_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert this_machine(tmp_path).gpus == (0, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert this_machine(tmp_path).gpus == (0,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert this_machine(tmp_path).gpus == ()
