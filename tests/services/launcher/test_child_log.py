"""The log of a child: readable at its end, and bounded while the child writes on."""

from pathlib import Path

from services.launcher.child_log import bound_log, log_tail


def test_the_tail_is_the_last_lines_that_say_something(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\n\nthree\n\n")
    assert log_tail(log, num_lines=2) == ["two", "three"]
    assert log_tail(tmp_path / "none.log", num_lines=2) == []


def test_a_log_over_its_bound_begins_anew_and_what_it_held_is_kept_once(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as child:
        child.write(b"old\n" * 4)
        bound_log(log, limit_bytes=16)
        assert log.read_bytes() == b"old\n" * 4
        child.write(b"last\n")
        bound_log(log, limit_bytes=16)
        child.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "a.previous.log").read_bytes() == b"old\n" * 4 + b"last\n"


def test_a_log_that_is_not_there_is_within_its_bound(tmp_path: Path) -> None:
    bound_log(tmp_path / "none.log", limit_bytes=1)
    assert list(tmp_path.iterdir()) == []
