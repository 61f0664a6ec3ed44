"""The orders of the workers of a process, as the directory has them now."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from proto import keys
from proto.codec import decode
from proto.errors import InvalidRequest
from proto.roles import Order
from services.directory import Changed, Directory, Entry, Listed
from services.orders import PlacedOrder, read_order
from workers.roles.term import Term

log = logging.getLogger(__name__)


class OrderWatch:
    """Belongs to the event loop. One for all workers of a process, however many."""

    def __init__(self) -> None:
        self._placed: dict[str, PlacedOrder] = {}
        self._news = asyncio.Event()
        self._listeners: dict[str, Callable[[], None]] = {}

    def find(self, worker: str) -> PlacedOrder | None:
        """The last order of a worker, under way or fulfilled."""
        return self._placed.get(worker)

    async def wait_seen(self, order: Order) -> None:
        """Until this order, or one after it, has come."""
        while (placed := self.find(order.worker)) is None or placed.order.epoch < order.epoch:
            await self._news.wait()

    def listen(self, worker: str, listener: Callable[[], None]) -> Callable[[], None]:
        """`listener()` when the worker's order may be another one; the result takes it off again."""
        self._listeners[worker] = listener
        return lambda: self._forget(worker)

    def _forget(self, worker: str) -> None:
        self._listeners.pop(worker, None)

    async def follow(self, directory: Directory, prefix: str) -> None:
        """For ever. Args: `prefix`: of the keys of these workers' orders."""
        async with directory.watch(prefix) as changes:
            async for change in changes:
                match change:
                    case Listed(entries):
                        before, self._placed = self._placed, {}
                        self._take(entries)
                        self._tell(before.keys() | self._placed.keys())
                    case Changed(entry):
                        self._take((entry,))
                        self._tell((keys.last_part(entry.key),))
                    case _:
                        worker = keys.last_part(change.key)
                        self._placed.pop(worker, None)
                        self._tell((worker,))

    def _take(self, entries: Iterable[Entry]) -> None:
        """An order that cannot be read, of a later version, is not followed."""
        for entry in entries:
            try:
                placed = PlacedOrder(decode(entry.value, Order), entry.revision)
            except InvalidRequest as error:
                log.error("an order cannot be read", extra={"key": entry.key, "reason": str(error)})
            else:
                self._placed[keys.last_part(entry.key)] = placed

    def _tell(self, workers: Iterable[str]) -> None:
        for worker in workers:
            if worker in self._listeners:
                self._listeners[worker]()
        self._news.set()
        self._news = asyncio.Event()


async def adopt_order(directory: Directory, ns: str, term: Term) -> None:
    """A worker that starts anew under its name has the role and the epoch of its last order, which its life
    before may have been about to fulfil.

    Mutates: `term`, before anybody else knows it.
    """
    placed = await read_order(directory, ns, term.worker)
    if placed is not None:
        term.role, term.epoch = placed.order.role, placed.order.epoch
        log.info("its last order says %s", term.role, extra={"epoch": term.epoch})
