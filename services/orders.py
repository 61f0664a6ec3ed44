"""What must not race: orders and drains of one model's workers, each of which bumps one counter.

Whoever takes a worker out of its role compares, in the transaction that bumps the counter, the cards of those
that stay. Of two at one moment, the later one reads what the earlier has said, or is refused because it
changed. What says that a worker leaves its role is its own card, or an order of which its card knows nothing
yet.

```
 place_order ──► (the worker lets go) ──► begin_order ──► its card has the order's epoch: fulfilled
      │                    │
      └────────────────────┴── give_up_order, take_back ──► the role that it has stays
```
An order outlives its worker, which has its role again when it comes back. Many never do: whoever places an
order forgets the oldest of those who are away, beyond `MOST_ABSENT`.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from proto import keys
from proto.cards import WorkerCard
from proto.codec import decode, encode
from proto.errors import Conflict, DeadlineExceeded, Disconnected, InvalidRequest
from proto.roles import FIRST_EPOCH, DrainMode, Order, Role, WorkerState
from services.directory import Directory, Entry, Guard, Put

log = logging.getLogger(__name__)

MAX_SURVIVORS = 32
MAX_WORDS_CHARS = 1000
MOST_ABSENT = 256
"""Orders of workers without a card that are kept for their return."""
NUM_TRIES = 10
"""Each try that fails means that somebody else has succeeded."""

IsLost = Callable[[str], bool]
"""Whether a worker beats no more. Its card stays until its lease is over."""

_Result = TypeVar("_Result")


def nobody_is_lost(_: str) -> bool:
    """For those who hear no beats: who has a card is there."""
    return False


class PlacedOrder(msgspec.Struct, frozen=True):
    """An order as the directory has it since `revision`."""

    order: Order
    revision: int


async def read_card(directory: Directory, ns: str, worker: str) -> WorkerCard:
    """
    Raises:
        InvalidRequest: there is no such worker.
    """
    return decode((await _read_card_entry(directory, ns, worker)).value, WorkerCard)


async def _read_card_entry(directory: Directory, ns: str, worker: str) -> Entry:
    entry = await directory.get(keys.worker(ns, worker))
    if entry is None:
        raise InvalidRequest(field="worker", reason=f"there is no worker {worker!r}")
    return entry


async def read_order(directory: Directory, ns: str, worker: str) -> PlacedOrder | None:
    """The last order of a worker, under way or fulfilled; None when it has none, which says nothing of it."""
    entry = await directory.get(keys.order(ns, worker))
    return None if entry is None else PlacedOrder(decode(entry.value, Order), entry.revision)


async def find_survivors(
    directory: Directory, ns: str, leaver: WorkerCard, is_lost: IsLost = nobody_is_lost
) -> list[Entry]:
    """Cards of ready decode workers that stay in their role when `leaver`, which decodes, takes no work, and
    that are not lost; of one that does not decode, nobody need stay.

    Raises:
        InvalidRequest: it decodes, and none would be left.
    """
    if leaver.role is not Role.DECODE:
        return []
    cards = await directory.list(keys.workers(ns))
    epochs = await _ordered_epochs(directory, ns)
    staying = [entry for entry in cards if _stays(decode(entry.value, WorkerCard), leaver, epochs)]
    lost = [worker for entry in staying if is_lost(worker := keys.last_part(entry.key))]
    survivors = [entry for entry in staying if keys.last_part(entry.key) not in lost]
    if not survivors:
        silent = f", and not heard of: {', '.join(lost)}" if lost else ""
        reason = f"{leaver.worker} is the last ready decode worker of {leaver.model!r}{silent}"
        raise InvalidRequest(field="worker", reason=reason)
    return survivors[:MAX_SURVIVORS]


async def _ordered_epochs(directory: Directory, ns: str) -> dict[str, int]:
    entries = await directory.list(keys.orders(ns))
    return {keys.last_part(entry.key): decode(entry.value, Order).epoch for entry in entries}


def _stays(card: WorkerCard, leaver: WorkerCard, ordered_epochs: dict[str, int]) -> bool:
    is_other = card.worker != leaver.worker and card.model == leaver.model
    is_ordered_away = ordered_epochs.get(card.worker, 0) > card.epoch
    return is_other and card.role is Role.DECODE and card.state is WorkerState.READY and not is_ordered_away


class _Turn(msgspec.Struct, frozen=True):
    """What a change of who decodes rests on, and the counter that it bumps."""

    number: int
    guards: list[Guard]
    bump: Put


async def _read_turn(directory: Directory, ns: str, leaver: WorkerCard, is_lost: IsLost) -> _Turn:
    """
    Raises:
        InvalidRequest: as `find_survivors`.
    """
    key = keys.orders_of(ns, leaver.model)
    counter = await directory.get(key)
    survivors = await find_survivors(directory, ns, leaver, is_lost)
    number, revision = (1, 0) if counter is None else (int(counter.value) + 1, counter.revision)
    guards = [Guard(key, revision), *(Guard(entry.key, entry.revision) for entry in survivors)]
    return _Turn(number, guards, Put(key, str(number).encode()))


async def bump_orders(
    directory: Directory, ns: str, leaver: WorkerCard, is_lost: IsLost = nobody_is_lost
) -> int:
    """The counter of the model's orders, one higher, provided that a ready decode worker stays.

    Raises:
        InvalidRequest: none would.
        Conflict: others were quicker again and again.
    """

    async def bump() -> int:
        turn = await _read_turn(directory, ns, leaver, is_lost)
        await directory.transact(turn.guards, (turn.bump,))
        return turn.number

    return await _retry(bump)


async def place_order(
    directory: Directory,
    ns: str,
    worker: str,
    role: Role,
    *,
    mode: DrainMode = DrainMode.MOVE,
    limit_s: float = 30.0,
    placed_by: str = "operator",
    reason: str = "",
    only_if: Sequence[Guard] = (),
    is_lost: IsLost = nobody_is_lost,
) -> Order:
    """Have `worker` take `role`, as soon as it has let go of the work of the role that it has; provided that
    what `only_if` names is as it says.

    Raises:
        InvalidRequest: no such worker, it has that role, takes no orders now, or is the last to decode; or
            words that are no line.
        Conflict: others were quicker again and again, or something is not as `only_if` says.
    """
    if not limit_s > 0:
        raise InvalidRequest(field="limit_s", reason=f"{limit_s} s is no time to let go in")
    _check_words("placed_by", placed_by)
    _check_words("reason", reason)

    async def place() -> Order:
        entry = await _read_card_entry(directory, ns, worker)
        card = decode(entry.value, WorkerCard)
        before = await read_order(directory, ns, worker)
        _check_orderable(card, before, role)
        turn = await _read_turn(directory, ns, card, is_lost)
        order = Order(worker, role, card.epoch + 1, mode, limit_s, placed_by, reason)
        key = keys.order(ns, worker)
        own = [Guard(entry.key, entry.revision), Guard(key, before.revision if before is not None else 0)]
        await directory.transact([*only_if, *own, *turn.guards], (Put(key, encode(order)), turn.bump))
        return order

    order = await _retry(place)
    await _forget_oldest(directory, ns)
    return order


async def _forget_oldest(directory: Directory, ns: str) -> None:
    """What cannot be forgotten now is by the next one."""
    try:
        orders = await directory.list(keys.orders(ns))
        if len(orders) <= MOST_ABSENT:
            return
        present = {keys.last_part(entry.key) for entry in await directory.list(keys.workers(ns))}
        absent = [entry for entry in orders if keys.last_part(entry.key) not in present]
        absent.sort(key=lambda entry: entry.revision)
        for entry in absent[:-MOST_ABSENT]:
            with suppress(Conflict):
                await directory.remove(entry.key, entry.revision)
    except (Disconnected, DeadlineExceeded) as error:
        log.info("no old orders are forgotten", extra={"reason": str(error)})


def _check_words(field: str, words: str) -> None:
    """
    Raises:
        InvalidRequest: logs could not hold them in a line.
    """
    if len(words) > MAX_WORDS_CHARS or not words.isprintable():
        raise InvalidRequest(field=field, reason=f"not one line of at most {MAX_WORDS_CHARS} characters")


def _check_orderable(card: WorkerCard, before: PlacedOrder | None, role: Role) -> None:
    """
    Raises:
        InvalidRequest: it has that role, or takes no orders now.
    """
    if before is not None and before.order.epoch > card.epoch:
        reason = f"{card.worker} is on its way to {before.order.role} already"
        raise InvalidRequest(field="worker", reason=reason)
    if card.role is role:
        raise InvalidRequest(field="role", reason=f"{card.worker} is a {role} worker already")
    if card.state is not WorkerState.READY:
        raise InvalidRequest(field="worker", reason=f"{card.worker} is {card.state}")


async def begin_order(
    directory: Directory, ns: str, placed: PlacedOrder, card: WorkerCard, is_lost: IsLost = nobody_is_lost
) -> PlacedOrder:
    """The worker's own last check: the order stands, and without it a ready decode worker stays. From now on
    it cannot be taken back.

    Raises:
        InvalidRequest: it was taken back, or no decode worker would be left.
        Conflict: others were quicker again and again.
    """
    key = keys.order(ns, placed.order.worker)
    begun = msgspec.structs.replace(placed.order, is_begun=True)

    async def begin() -> PlacedOrder:
        turn = await _read_turn(directory, ns, card, is_lost)
        now = await read_order(directory, ns, placed.order.worker)
        if now is None or now.revision != placed.revision:
            raise InvalidRequest(field="worker", reason="the order was taken back")
        guards = [Guard(key, placed.revision), *turn.guards]
        return PlacedOrder(begun, await directory.transact(guards, (Put(key, encode(begun)), turn.bump)))

    return await _retry(begin)


async def take_back(directory: Directory, ns: str, worker: str) -> None:
    """The worker goes on in the role that it has, in the same epoch.

    Raises:
        InvalidRequest: no such worker, no switch of it is under way, or it has begun the new role.
        Conflict: others were quicker again and again.
    """

    async def take() -> None:
        card = await read_card(directory, ns, worker)
        placed = await read_order(directory, ns, worker)
        if placed is None or placed.order.epoch <= card.epoch:
            raise InvalidRequest(field="worker", reason=f"{worker} is not on its way to another role")
        if placed.order.is_begun:
            reason = f"{worker} begins its role as a {placed.order.role} worker"
            raise InvalidRequest(field="worker", reason=reason)
        await give_up_order(directory, ns, placed, card)

    await _retry(take)


async def give_up_order(directory: Directory, ns: str, placed: PlacedOrder, card: WorkerCard) -> None:
    """An order that is not fulfilled is gone: the role that the card has is the wanted one again, also for a
    worker that starts anew.

    Raises:
        Conflict: it was changed meanwhile.
    """
    key = keys.order(ns, placed.order.worker)
    if card.epoch == FIRST_EPOCH:
        await directory.remove(key, placed.revision)
        return
    kept = Order(card.worker, card.role, card.epoch, placed_by=placed.order.placed_by, is_begun=True)
    await directory.swap(key, encode(kept), placed.revision)


async def _retry(attempt: Callable[[], Awaitable[_Result]]) -> _Result:
    """
    Raises:
        Conflict: others were quicker each time.
    """
    for _ in range(NUM_TRIES - 1):
        try:
            return await attempt()
        except Conflict:
            continue
    return await attempt()
