"""The holder's side: which grants this worker may still write under.

A grant that has ended here, or that an owner was told is not held, is never held again: the owner has taken
its blocks back. So the answer to "may I write?" that arrives after such a word is too late.
"""

from collections import OrderedDict
from collections.abc import Sequence

from proto.cards import ProcessIdentity
from workers.roles.proof import are_gone

MAX_ENDED = 65_536
"""More grants than can end while one answer of an owner is on its way."""


class HeldGrants:
    """The grants of the jobs in hand, and those in doubt: a write failed after it was posted."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._in_doubt: dict[str, Sequence[ProcessIdentity]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def try_add(self, grant: str) -> bool:
        """Hold a grant from now on; False when it has ended already."""
        if grant in self._ended:
            return False
        self._held.add(grant)
        return True

    def drop(self, grant: str) -> None:
        """Nothing is written under this grant any more, and nothing of it is on its way."""
        self._held.discard(grant)
        self._note_ended(grant)

    def doubt(self, grant: str, owner: Sequence[ProcessIdentity]) -> None:
        """Nothing more is written, but what was posted may land late: held until its owner is gone, with all
        of its processes."""
        self._held.discard(grant)
        self._in_doubt = dict(self._doubts()) | {grant: owner}

    def _doubts(self) -> list[tuple[str, Sequence[ProcessIdentity]]]:
        """The end of an owner is found when somebody looks: nobody tells of it."""
        return [(grant, owner) for grant, owner in list(self._in_doubt.items()) if not are_gone(owner)]

    def among(self, grants: list[str]) -> list[str]:
        """Those of `grants` that are held. The others never will be."""
        held = [grant for grant in grants if grant in self._held or grant in self._in_doubt]
        for grant in set(grants).difference(held):
            self._note_ended(grant)
        return held

    def all(self) -> list[str]:
        return [*self._held, *(grant for grant, _ in self._doubts())]

    def _note_ended(self, grant: str) -> None:
        self._ended[grant] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def __len__(self) -> int:
        return len(self.all())
