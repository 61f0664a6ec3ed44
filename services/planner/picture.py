"""One model as a planner sees it: its workers, the moves under way, and what comes."""

from collections.abc import Sequence

import msgspec

from proto.roles import Role
from services.planner.rate_match import Match, Split


class WorkerSeen(msgspec.Struct, frozen=True):
    """A ready worker. Units: `since_s` on the caller's clock, when it was first seen in its role."""

    worker: str
    role: Role
    since_s: float
    num_in_hand: int = 0


class Move(msgspec.Struct, frozen=True):
    worker: str
    to: Role

    @property
    def step(self) -> int:
        """How many prefill workers more there are afterwards."""
        return 1 if self.to is Role.PREFILL else -1


class UnderWay(msgspec.Struct, frozen=True):
    """An order that is not fulfilled yet; `is_ours`: a planner's, not an operator's."""

    move: Move
    is_ours: bool


class Picture(msgspec.Struct, frozen=True):
    """One model as it is seen: its ready workers, but for those under way; what comes, and what it feels.

    `obstacle` says why nothing may be done on it, in a few words: a report is missing. `match` is None until
    something was measured. Latencies in seconds, 0 while unknown; `noise` as a share.
    """

    workers: Sequence[WorkerSeen] = ()
    under_way: Sequence[UnderWay] = ()
    match: Match | None = None
    noise: float = 0.0
    ttft_s: float = 0.0
    itl_s: float = 0.0
    obstacle: str = ""

    @property
    def split(self) -> Split:
        """With what is under way done."""
        prefill = sum(each.role is Role.PREFILL for each in self.workers)
        coming = sum(each.move.to is Role.PREFILL for each in self.under_way)
        all_workers = len(self.workers) + len(self.under_way)
        return Split(prefill + coming, all_workers - prefill - coming)
