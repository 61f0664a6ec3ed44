"""A wall clock that nothing may rely on: every look at it is off by up to a day, forwards or backwards."""

import os
from pathlib import Path

_SITE = '''"""Python reads this before the first line of a process."""

import random
import time

DAY_S = 86_400.0
_now_s, _now_ns, _chosen = time.time, time.time_ns, random.Random()


def time_astray() -> float:
    return _now_s() + _chosen.uniform(-DAY_S, DAY_S)


def time_ns_astray() -> int:
    return _now_ns() + int(1e9 * _chosen.uniform(-DAY_S, DAY_S))


time.time, time.time_ns = time_astray, time_ns_astray
'''


def astray_clock(folder: Path) -> dict[str, str]:
    """Variables under which Python processes have such a clock."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
