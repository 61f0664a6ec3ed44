"""The holder's side: which grants this worker may still write under.

A grant that was given back, or that this incarnation never had, is never held again: an owner that is told
"not held" takes its blocks back at once.
"""


class HeldGrants:
    """The grants of the jobs in hand."""

    def __init__(self) -> None:
        self._held: set[str] = set()

    def add(self, grant: str) -> None:
        self._held.add(grant)

    def drop(self, grant: str) -> None:
        self._held.discard(grant)

    def among(self, grants: list[str]) -> list[str]:
        """Those of `grants` that are held."""
        return [grant for grant in grants if grant in self._held]

    def __len__(self) -> int:
        return len(self._held)
