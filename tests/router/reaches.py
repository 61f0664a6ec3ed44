"""What a match says, worker by worker."""

from router.kv_index import Match
from router.slots import Slots


def reach_of(match: Match, slots: Slots) -> dict[str, int]:
    """How many blocks of the prompt each worker has, where that is any."""
    depths = match.depths(slots.size).tolist()
    return {worker: depths[slot] for worker, slot in slots if depths[slot]}
