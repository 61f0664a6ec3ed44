"""Log lines: their fields, the request they are about, their bounds."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidSetting
from services.logs import LogSettings, logging_request, set_up_logs

log = logging.getLogger("services.test")


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_json_line_holds_the_process_the_fields_and_the_error(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "w.log"
    set_up_logs(LogSettings(form="json", file=file), "worker", "w-1")
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        log.exception("no %s", "luck", extra={"num_keys": 3, "path": Path("a")})
    (line,) = _lines(file)
    assert "ZeroDivisionError" in line.pop("error")
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "error",
        "kind": "worker",
        "process": "w-1",
        "logger": "services.test",
        "message": "no luck",
        "num_keys": 3,
        "path": "a",
    }


def test_lines_name_the_request_of_their_own_task(tmp_path: Path) -> None:
    file = tmp_path / "r.log"
    set_up_logs(LogSettings(form="json", file=file), "router", "r-1")

    async def serve(request_id: str) -> None:
        with logging_request(request_id):
            await asyncio.sleep(0)
            log.info("of %s", request_id)

    async def body() -> None:
        await asyncio.gather(*(serve(f"request-{number}") for number in range(5)))
        log.info("of none")

    asyncio.run(body())
    *of_requests, last = _lines(file)
    assert all(line["message"] == f"of {line['request']}" for line in of_requests)
    assert "request" not in last


def test_a_console_line_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(LogSettings(), "router", "r-1")
    with logging_request("abc"):
        log.warning("lease lost", extra={"num_keys": 3})
    line = capsys.readouterr().err
    assert line.endswith("warning r-1 services.test: lease lost request=abc num_keys=3\n")


def test_what_weighs_less_than_the_level_and_the_chatter_of_libraries_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "r.log"
    set_up_logs(LogSettings(form="json", file=file), "router", "r-1")
    log.debug("not this")
    logging.getLogger("uvicorn.error").info("nor this")
    logging.getLogger("uvicorn.error").warning("but this")
    assert [line["message"] for line in _lines(file)] == ["but this"]


def test_lines_and_files_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "r.log"
    set_up_logs(LogSettings(form="json", file=file, file_bytes=50_000, num_files=2), "router", "r-1")
    for _ in range(20):
        log.info("x" * 100_000, extra={"field": "y" * 100_000})
    assert max(len(line) for line in file.read_text().splitlines()) < 20_000
    assert sum(found.stat().st_size for found in tmp_path.iterdir()) <= 150_000
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_that_cannot_be_opened_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"logs\.file"):
        set_up_logs(LogSettings(file=tmp_path), "router", "r-1")
