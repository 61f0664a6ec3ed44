"""Who reads the wall clock: whoever tells people or OpenAI's clients what time it is, and no deadline."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("proto", "services", "frontend", "router", "workers")
TELLING = {
    "frontend/openai/calls.py": 1,  # `created` of an answer
    "frontend/text/template_sandbox.py": 1,  # the date in a chat template
    "services/micro.py": 1,  # since when a service runs
    "services/logs.py": 2,  # of a line, for people and as JSON
    "services/tracing.py": 1,  # the begin of a span
    "workers/registration.py": 1,  # `created` of a model
}
WALL_CLOCKS = {"time", "time_ns", "ctime", "localtime", "gmtime", "CLOCK_REALTIME", "now", "utcnow", "today"}
MODULES = {"time", "datetime", "date"}


def looks(code: str) -> Iterator[str]:
    """Every mention of a wall clock, and every import under which one could hide."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Attribute(attr=name) if name in WALL_CLOCKS and _is_of_a_clock(node.value):
                yield name
            case ast.ImportFrom(module="time", names=names):
                yield from (alias.name for alias in names if alias.name in WALL_CLOCKS)
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.asname and alias.name in MODULES)


def _is_of_a_clock(value: ast.expr) -> bool:
    """Whether this is `time`, `datetime` or `date`, or one of these of a module."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in MODULES
    return False


def test_only_what_tells_the_time_reads_the_wall_clock() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    found = Counter({str(file.relative_to(ROOT)): len(list(looks(file.read_text()))) for file in files})
    assert +found == TELLING


def test_a_look_is_found_in_every_form() -> None:
    code = """
import time as clock
import datetime
from time import time_ns
time.time()
asyncio.get_running_loop().call_at(time.time_ns())
datetime.datetime.now(tz=None)
date.today()
time.clock_gettime(time.CLOCK_REALTIME)
"""
    assert len(list(looks(code))) == 7
    assert list(looks("time.monotonic(); loop.time(); self.now_s(); record.created")) == []
