"""Which planner of a namespace gives orders: the one whose presence has been in the directory longest.

A presence hangs on its process's lease: when that ends, the next one in line leads. One that lost its lease
and took another is last in line. Its orders are placed on condition that its presence is the one that led, so
that one who was cut off or stopped for a while, and does not know it yet, orders nothing.
"""

from collections.abc import Sequence

from proto import keys
from proto.errors import Conflict
from services.directory import Change, Changed, Directory, Entry, Guard, Listed


class Election:
    """Fed with what is under `keys.planners`."""

    def __init__(self, ns: str, planner: str) -> None:
        self._ns = ns
        self._planner = planner
        self._entries: dict[str, Entry] = {}

    def apply(self, change: Change) -> None:
        match change:
            case Listed(entries=entries):
                self._entries = {entry.key: entry for entry in entries}
            case Changed(entry=entry):
                self._entries[entry.key] = entry
            case _:
                self._entries.pop(change.key, None)

    @property
    def leads(self) -> bool:
        """By what was last heard."""
        return line_up(list(self._entries.values()))[:1] == [self._planner]

    async def lead(self, directory: Directory) -> Guard:
        """The condition under which it leads: while its presence is the same, nobody is before it.

        Raises:
            Conflict: another leads.
            KvmeshError: the directory is out of reach.
        """
        presences = await directory.list(keys.planners(self._ns))
        if line_up(presences)[:1] != [self._planner]:
            raise Conflict(key=keys.planner(self._ns, self._planner))
        first = _in_line(presences)[0]
        return Guard(first.key, first.revision)


def line_up(presences: Sequence[Entry]) -> list[str]:
    """The planners whose presences these are: the one that leads first, then those that stand by."""
    return [keys.last_part(entry.key) for entry in _in_line(presences)]


def _in_line(presences: Sequence[Entry]) -> list[Entry]:
    return sorted(presences, key=lambda entry: entry.revision)
