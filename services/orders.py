"""What must not race: orders and drains of one model's workers, each of which bumps one counter.

Whoever takes a worker out of its role does it in this order: the worker's own card says so first, then
`bump_orders` compares the counter and the cards of those that stay. Of two at one moment, the later one reads
the card of the earlier, or is refused because it changed.
"""

from proto import keys
from proto.cards import WorkerCard
from proto.codec import decode
from proto.errors import Conflict, InvalidRequest
from proto.roles import Role, WorkerState
from services.directory import Directory, Entry, Guard, Put

MAX_SURVIVORS = 32
NUM_TRIES = 5


async def read_card(directory: Directory, ns: str, worker: str) -> WorkerCard:
    """
    Raises:
        InvalidRequest: there is no such worker.
    """
    entry = await directory.get(keys.worker(ns, worker))
    if entry is None:
        raise InvalidRequest(field="worker", reason=f"there is no worker {worker!r}")
    return decode(entry.value, WorkerCard)


async def find_survivors(directory: Directory, ns: str, leaver: WorkerCard) -> list[Entry]:
    """Cards of ready decode workers that stay when `leaver` takes no work.

    Raises:
        InvalidRequest: it decodes, and none would be left.
    """
    entries = await directory.list(keys.workers(ns))
    survivors = [entry for entry in entries if _stays(decode(entry.value, WorkerCard), leaver)]
    if leaver.role is Role.DECODE and not survivors:
        reason = f"{leaver.worker} is the last ready decode worker of {leaver.model!r}"
        raise InvalidRequest(field="worker", reason=reason)
    return survivors[:MAX_SURVIVORS]


def _stays(card: WorkerCard, leaver: WorkerCard) -> bool:
    is_other = card.worker != leaver.worker and card.model == leaver.model
    return is_other and card.role is Role.DECODE and card.state is WorkerState.READY


async def bump_orders(directory: Directory, ns: str, leaver: WorkerCard) -> int:
    """The counter of the model's orders, one higher, provided that a ready decode worker stays.

    Raises:
        InvalidRequest: none would.
        Conflict: others were quicker again and again.
    """
    key = keys.orders_of(ns, leaver.model)
    for _ in range(NUM_TRIES):
        counter = await directory.get(key)
        survivors = await find_survivors(directory, ns, leaver)
        try:
            return await _bump(directory, key, counter, survivors)
        except Conflict:
            continue
    raise Conflict(key=key)


async def _bump(directory: Directory, key: str, counter: Entry | None, survivors: list[Entry]) -> int:
    number = 1 if counter is None else int(counter.value) + 1
    revision = 0 if counter is None else counter.revision
    guards = [Guard(key, revision), *(Guard(entry.key, entry.revision) for entry in survivors)]
    await directory.transact(guards, (Put(key, str(number).encode()),))
    return number
