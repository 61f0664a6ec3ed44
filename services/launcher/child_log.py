"""The log of a child: its last lines, and its bound."""

import os
import shutil
from pathlib import Path


def log_tail(log: Path, num_lines: int, num_bytes: int = 16384) -> list[str]:
    """The last lines of `log`; none when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - num_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-num_lines:]


def bound_log(log: Path, limit_bytes: int) -> None:
    """Empties a log over `limit_bytes`, keeping what it held in `.previous.log`.

    The child writes in append mode, so it goes on at the new end; a line that it writes between copy and cut
    is lost.
    """
    try:
        if log.stat().st_size > limit_bytes:
            shutil.copyfile(log, log.with_suffix(".previous.log"))
            os.truncate(log, 0)
    except FileNotFoundError:
        return
