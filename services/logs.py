"""Logs: lines with fields and the request they are about, for people or for machines, within bounds.

Fields are given as `extra={"num_keys": 3}`, ids and numbers only: prompts and tokens are in no log.
"""

import logging
import logging.handlers
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from proto.errors import InvalidSetting
from proto.reports import ProcessKind

MAX_FIELD_CHARS = 2_000
MAX_LINE_CHARS = 16_000

_request_id: ContextVar[str] = ContextVar("request_id", default="")
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
_QUIET = ("asyncio", "etcd3aio", "grpc", "httpx", "nats", "opentelemetry", "urllib3", "uvicorn")


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged, how, and where."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="the least weighty that is logged")
    ] = "info"
    form: Annotated[
        Literal["console", "json"], Meta(description="console: lines for people; json: an object a line")
    ] = "console"
    file: Annotated[Path | None, Meta(description="file to log to; unset: stderr")] = None
    file_bytes: Annotated[int, Meta(description="bytes after which the file begins anew", ge=4096)] = (
        16 * 2**20
    )
    num_files: Annotated[int, Meta(description="older files that are kept", ge=1)] = 2


@contextmanager
def logging_request(request_id: str) -> Iterator[None]:
    """What is logged in the body, by this task and those it starts, names the request."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def set_up_logs(settings: LogSettings, kind: ProcessKind, process: str) -> None:
    """From now on everything logged by this process has this form and goes there. Once, at its start.

    Raises:
        InvalidSetting: the file cannot be opened.
    """
    handler = _handler(settings)
    handler.setFormatter(JsonLines(kind, process) if settings.form == "json" else ConsoleLines(process))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def _handler(settings: LogSettings) -> logging.Handler:
    if settings.file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        settings.file.parent.mkdir(parents=True, exist_ok=True)
        return logging.handlers.RotatingFileHandler(
            settings.file, maxBytes=settings.file_bytes, backupCount=settings.num_files, encoding="utf-8"
        )
    except OSError as error:
        raise InvalidSetting(setting="logs.file", reason=str(error)) from error


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, kind, process, logger, message, request, fields, error."""

    def __init__(self, kind: ProcessKind, process: str) -> None:
        super().__init__()
        self._process = {"kind": kind, "process": process}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            **self._process,
            "logger": record.name,
            "message": record.getMessage()[:MAX_LINE_CHARS],
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)[-MAX_LINE_CHARS:]
        return msgspec.json.encode(line).decode()


class ConsoleLines(logging.Formatter):
    """`12:00:01.123 warning w-1 services.lease: the lease was lost num_keys=3`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock}.{int(record.msecs):03} {record.levelname.lower()} {self._process} {record.name}"
        line = f"{head}: {record.getMessage()[:MAX_LINE_CHARS]}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)[-MAX_LINE_CHARS:]
        return line


def _utc(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {name: _bounded(value) for name, value in vars(record).items() if name not in _KNOWN}
    request_id = _request_id.get()
    return {"request": request_id, **fields} if request_id else fields


def _bounded(value: object) -> object:
    return value if isinstance(value, bool | int | float) else str(value)[:MAX_FIELD_CHARS]
