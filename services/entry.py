"""How the command line starts an application without importing it: entry points of the package.

`services` may not import `frontend`, `router` or `workers`: each declares a `ProcessEntry` and names it in
pyproject.toml under `kvmesh.processes`. The module of an entry imports its settings struct and nothing heavy;
`run` imports the rest when it is called, so that `--help` is quick.
"""

from asyncio import Event
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from proto.errors import InvalidSetting

GROUP = "kvmesh.processes"
KINDS = ("frontend", "router", "worker", "planner")
TRIAL_KINDS = ("simulate",)  # of a mesh that is tried out, not served from


@dataclass(frozen=True)
class ProcessEntry:
    """One kind of process: the struct of its settings, their section in the file, and its life.

    `run` returns once the process has ended in good order after the event was set.
    """

    kind: str
    section: str
    settings: type[Any]
    run: Callable[[Any, Event], Awaitable[None]]


def find_entry(kind: str) -> ProcessEntry:
    """The entry that the installed package declares for `kind`.

    Raises:
        InvalidSetting: none is declared, or it is no `ProcessEntry`.
    """
    for declared in entry_points(group=GROUP, name=kind):
        entry = declared.load()
        if isinstance(entry, ProcessEntry):
            return entry
    raise InvalidSetting(setting=kind, reason=f"the installed package declares no such process under {GROUP}")
