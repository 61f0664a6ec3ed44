"""The owner's table of grants: who may write into which blocks, and what is in quarantine.

```
             ask           notice              landed: blocks go to the sequence
 (set aside) ───► granted ───────► landing ───► released: blocks go back to the pool
                     │
                     │ cancel, or the holder falls silent
                     ▼
                 quarantined ─────► landing, release, "not holding", or proof of death: back to the pool
```

While it is landing nobody else has leave any more, and what lies in staging is copied into the pool; without
staging that is no time. Pure bookkeeping: the blocks themselves are the engine's, set aside in its pool.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proto.cards import ProcessIdentity
from proto.control import Granted


@dataclass(slots=True)
class Grant:
    """One grant for its whole life. `sequence` is the engine's, whose KV is awaited; `processes` are all of
    its holder's. `blocks` are those of the pool that are set aside for it, as long as they are: the same that
    the holder was told of, or as many."""

    granted: Granted
    blocks: list[int]
    sequence: str
    holder: str
    holder_incarnation: str
    processes: Sequence[ProcessIdentity]
    began_s: float
    is_quarantined: bool = False
    is_landing: bool = False

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)


@dataclass(slots=True)
class GrantTable:
    """All grants that are neither landed nor over. `now_s` is a monotonic clock, in seconds."""

    now_s: Callable[[], float] = time.monotonic
    _by_id: dict[str, Grant] = field(default_factory=dict)

    def add(
        self,
        granted: Granted,
        blocks: list[int],
        sequence: str,
        holder: str,
        holder_incarnation: str,
        processes: Sequence[ProcessIdentity],
    ) -> Grant:
        grant = Grant(granted, blocks, sequence, holder, holder_incarnation, processes, self.now_s())
        self._by_id[granted.grant] = grant
        return grant

    def find(self, grant: str) -> Grant | None:
        return self._by_id.get(grant)

    def find_asked(self, job: str, holder_incarnation: str) -> Grant | None:
        """The live grant that this holder was given for this job: asked twice, answered alike."""
        for grant in self._by_id.values():
            if (
                grant.granted.job == job
                and grant.holder_incarnation == holder_incarnation
                and not grant.is_quarantined
            ):
                return grant
        return None

    def quarantine(self, grant: str) -> None:
        """Nobody awaits its KV any more, but its holder may still write; not so if all has landed."""
        found = self._by_id.get(grant)
        if found is not None and not found.is_quarantined and not found.is_landing:
            found.is_quarantined = True
            found.began_s = self.now_s()

    def begin_landing(self, grant: str) -> Grant | None:
        """All of it is written; `end_landing` must follow. None when its writes had ended before."""
        found = self._by_id.get(grant)
        if found is None or found.is_landing:
            return None
        found.is_landing = True
        return found

    def end_landing(self, grant: Grant) -> None:
        """Forget it."""
        del self._by_id[grant.granted.grant]

    def take(self, grant: str) -> Grant | None:
        """Hand over a grant whose writes have ended, and forget it; None when it is landing, or that was
        done before."""
        found = self._by_id.get(grant)
        return None if found is None or found.is_landing else self._by_id.pop(grant)

    def all(self) -> list[Grant]:
        return list(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_granted(self) -> int:
        return sum(not grant.is_quarantined for grant in self._by_id.values())

    @property
    def num_granted_blocks(self) -> int:
        return sum(grant.num_blocks for grant in self._by_id.values() if not grant.is_quarantined)

    @property
    def num_quarantined_blocks(self) -> int:
        return sum(grant.num_blocks for grant in self._by_id.values() if grant.is_quarantined)
